// The table library reports trouble as one of these; each message is one line that names the file and what was found.
#pragma once

#include <stdexcept>

namespace engram {

//  TableError
//  |- ManifestError   the manifest cannot be read or is malformed
//  |- VerifyError     the checkpoint is not what the manifest says: a check says no
//  |- ResourceError   the machine could not do it: I/O error, not enough memory
//  `- Cancelled       the caller asked to stop
class TableError : public std::runtime_error {
  public:
    using std::runtime_error::runtime_error;
};

class ManifestError : public TableError {
  public:
    using TableError::TableError;
};

class VerifyError : public TableError {
  public:
    using TableError::TableError;
};

class ResourceError : public TableError {
  public:
    using TableError::TableError;
};

class Cancelled : public TableError {
  public:
    using TableError::TableError;
};

}  // namespace engram
