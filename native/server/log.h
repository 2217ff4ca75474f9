// Log lines of the server: "TIME engram_server: message", one write each, to stderr or to a file.
#pragma once

#include <string>
#include <string_view>

namespace engram::server {

// Thread-safe: a line is one write(2) to a descriptor opened for appending.
class Log {
  public:
    Log() = default;  // stderr
    // Appends to the file; throws ResourceError when it cannot be opened.
    explicit Log(const std::string& path);
    Log(const Log&) = delete;
    Log& operator=(const Log&) = delete;
    ~Log();

    void line(std::string_view message) const noexcept;

  private:
    int fd_ = 2;
};

}  // namespace engram::server
