#include "server/control.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "table/error.h"

namespace engram::server {
namespace {

// A client that does not read must not hold the thread for long.
constexpr timeval kSendPatience{.tv_sec = 2, .tv_usec = 0};
constexpr std::size_t kMaxAnswer = std::size_t{16} << 20;

class Socket {
  public:
    Socket() : fd_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
        if (fd_ < 0) throw ResourceError(fmt::format("no unix socket: {}", std::strerror(errno)));
    }
    ~Socket() {
        if (fd_ >= 0) ::close(fd_);
    }
    Socket(const Socket&) = delete;
    Socket& operator=(const Socket&) = delete;
    [[nodiscard]] int fd() const noexcept { return fd_; }
    int release() noexcept { return std::exchange(fd_, -1); }

  private:
    int fd_;
};

sockaddr_un address_of(const std::string& path) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (path.empty() || path.size() >= sizeof address.sun_path) {
        throw ResourceError(fmt::format("control socket {}: a socket's path has 1 to {} bytes, this one {}", path,
                                        sizeof address.sun_path - 1, path.size()));
    }
    std::memcpy(address.sun_path, path.data(), path.size());
    return address;
}

const sockaddr* generic(const sockaddr_un& address) {
    return reinterpret_cast<const sockaddr*>(&address);
}

// Removes what a dead server left; refuses everything else.
void clear_stale(const std::string& path, const sockaddr_un& address) {
    struct stat info{};
    if (::lstat(path.c_str(), &info) != 0) return;
    if (!S_ISSOCK(info.st_mode)) {
        throw ResourceError(fmt::format("control socket {}: something that is no socket is in its place", path));
    }
    const Socket probe;
    if (::connect(probe.fd(), generic(address), sizeof address) == 0 || errno != ECONNREFUSED) {
        throw ResourceError(
            fmt::format("control socket {}: a server is running there already (engram_server status "
                        "--control {})",
                        path, path));
    }
    ::unlink(path.c_str());
}

void send_all(int fd, const std::string& text) {
    std::size_t sent = 0;
    while (sent < text.size()) {
        const ssize_t n = ::send(fd, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return;  // the client's loss
        sent += static_cast<std::size_t>(n);
    }
}

}  // namespace

Control::Control(std::string path) : path_(std::move(path)) {
    const sockaddr_un address = address_of(path_);
    clear_stale(path_, address);
    Socket socket;
    const mode_t before = ::umask(0177);  // the socket is born 0600
    const int bound = ::bind(socket.fd(), generic(address), sizeof address);
    const int error = errno;
    ::umask(before);
    if (bound != 0) throw ResourceError(fmt::format("control socket {}: {}", path_, std::strerror(error)));
    struct stat info{};
    stop_event_ = ::eventfd(0, EFD_CLOEXEC);
    if (stop_event_ < 0 || ::listen(socket.fd(), 16) != 0 || ::lstat(path_.c_str(), &info) != 0) {
        const int cause = errno;
        if (stop_event_ >= 0) ::close(stop_event_);
        ::unlink(path_.c_str());
        throw ResourceError(fmt::format("control socket {}: {}", path_, std::strerror(cause)));
    }
    device_ = info.st_dev;
    inode_ = info.st_ino;
    listener_ = socket.release();
}

Control::~Control() {
    stop();
    struct stat info{};
    // A successor may have taken the path over.
    if (::lstat(path_.c_str(), &info) == 0 && info.st_dev == device_ && info.st_ino == inode_) ::unlink(path_.c_str());
    ::close(listener_);
    ::close(stop_event_);
}

void Control::start(std::function<std::string()> render) {
    render_ = std::move(render);
    thread_ = std::thread([this] { answer_all(); });
}

void Control::stop() noexcept {
    if (!thread_.joinable()) return;
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(stop_event_, &one, sizeof one);
    thread_.join();
}

void Control::answer_all() {
    for (;;) {
        pollfd waits[] = {{listener_, POLLIN, 0}, {stop_event_, POLLIN, 0}};
        if (::poll(waits, 2, -1) < 0 && errno != EINTR) return;
        if (waits[1].revents != 0) return;
        if (waits[0].revents == 0) continue;
        const int client = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
        if (client < 0) continue;
        ::setsockopt(client, SOL_SOCKET, SO_SNDTIMEO, &kSendPatience, sizeof kSendPatience);
        try {
            send_all(client, render_() + "\n");
        } catch (...) {
            // Out of memory, most likely: this client gets nothing, the server goes on.
        }
        ::close(client);
    }
}

std::string ask_control(const std::string& path, std::chrono::milliseconds patience) {
    const sockaddr_un address = address_of(path);
    const Socket socket;
    const timeval limit{.tv_sec = patience.count() / 1000, .tv_usec = patience.count() % 1000 * 1000};
    ::setsockopt(socket.fd(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    ::setsockopt(socket.fd(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    if (::connect(socket.fd(), generic(address), sizeof address) != 0) {
        throw ResourceError(fmt::format("no server answers on control socket {}: {}", path, std::strerror(errno)));
    }
    std::string answer;
    char piece[16384];
    for (;;) {
        const ssize_t n = ::recv(socket.fd(), piece, sizeof piece, 0);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) {
            const bool late = errno == EAGAIN || errno == EWOULDBLOCK;
            throw ResourceError(fmt::format("the server on control socket {} {}", path,
                                            late ? fmt::format("did not answer within {} ms", patience.count())
                                                 : std::string("went away: ") + std::strerror(errno)));
        }
        if (n == 0) return answer;
        answer.append(piece, static_cast<std::size_t>(n));
        if (answer.size() > kMaxAnswer) throw ResourceError(fmt::format("control socket {}: endless answer", path));
    }
}

}  // namespace engram::server
