#include "server/log.h"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <ctime>

#include "table/error.h"

namespace engram::server {

Log::Log(const std::string& path) : fd_(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0640)) {
    if (fd_ < 0) throw ResourceError(fmt::format("--log {}: {}", path, std::strerror(errno)));
}

Log::~Log() {
    if (fd_ > 2) ::close(fd_);
}

void Log::line(std::string_view message) const noexcept {
    try {
        const auto now = std::chrono::system_clock::now();
        const std::time_t seconds = std::chrono::system_clock::to_time_t(now);
        std::tm utc{};
        ::gmtime_r(&seconds, &utc);
        const auto millis =
            std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count() % 1000;
        const std::string text = fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:03}Z engram_server: {}\n", utc, millis, message);
        // A log that cannot be written must not stop the server.
        [[maybe_unused]] const ssize_t written = ::write(fd_, text.data(), text.size());
    } catch (...) {
    }
}

}  // namespace engram::server
