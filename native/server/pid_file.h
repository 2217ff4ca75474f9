#pragma once

#include <string>

namespace engram::server {

// Holds this process's id in a file; the destructor removes the file if it still holds it.
class PidFile {
  public:
    explicit PidFile(std::string path);  // empty: none. Throws ResourceError
    ~PidFile();
    PidFile(const PidFile&) = delete;
    PidFile& operator=(const PidFile&) = delete;

  private:
    std::string path_;
};

}  // namespace engram::server
