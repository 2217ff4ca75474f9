#pragma once

#include <optional>

namespace engram::server {

// Turns SIGTERM, SIGINT and SIGHUP into something that can be polled. Made in the main thread before any other starts,
// since threads inherit the mask; a closed pipe or socket raises no signal from then on.
class StopSignals {
  public:
    StopSignals();
    ~StopSignals();
    StopSignals(const StopSignals&) = delete;
    StopSignals& operator=(const StopSignals&) = delete;

    [[nodiscard]] int fd() const noexcept { return fd_; }
    // The signal that arrived, if fd() was readable.
    [[nodiscard]] std::optional<int> take() const noexcept;

  private:
    int fd_ = -1;
};

}  // namespace engram::server
