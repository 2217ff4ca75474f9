#include "server/signals.h"

#include <fmt/format.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>

#include "table/error.h"

namespace engram::server {

StopSignals::StopSignals() {
    sigset_t set;
    sigemptyset(&set);
    for (const int signal : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&set, signal);
    std::signal(SIGPIPE, SIG_IGN);
    // A parent that ignored SIGINT (a shell's background job) must not make us deaf: a signalfd needs the default
    // action.
    for (const int signal : {SIGTERM, SIGINT, SIGHUP}) std::signal(signal, SIG_DFL);
    if (const int error = pthread_sigmask(SIG_BLOCK, &set, nullptr); error != 0) {
        throw ResourceError(fmt::format("cannot block signals: {}", std::strerror(error)));
    }
    fd_ = ::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (fd_ < 0) throw ResourceError(fmt::format("no signalfd: {}", std::strerror(errno)));
}

StopSignals::~StopSignals() {
    if (fd_ >= 0) ::close(fd_);
}

std::optional<int> StopSignals::take() const noexcept {
    signalfd_siginfo info{};
    if (::read(fd_, &info, sizeof info) != static_cast<ssize_t>(sizeof info)) return std::nullopt;
    return static_cast<int>(info.ssi_signo);
}

}  // namespace engram::server
