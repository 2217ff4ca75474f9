#include "transport/ofl_server.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <list>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "transport/ofl_server_listen.h"
#include "transport/ofl_server_session.h"
#include "transport/ofl_server_stats.h"
#include "transport/ofl_socket.h"
#include "transport/ofl_wire.h"

namespace ofl {
namespace {

constexpr std::chrono::seconds kDeadAfter{30};  // a client that vanished without a word is dropped after this
constexpr std::chrono::milliseconds kAcceptPause{100};
constexpr std::chrono::milliseconds kTurnedAwayTime{500};
constexpr std::size_t kMaxTurnedAway = 64;
constexpr int kAcceptBurst = 64;  // then the other listeners, and stop(), get their turn

void signal(int event_fd) noexcept {
    // Fails only when the counter is full, and then it is readable anyway.
    (void)::eventfd_write(event_fd, 1);
}

}  // namespace

// Threads: start() starts the acceptor, the acceptor starts a thread for each session and joins it when it is done;
// stop() joins the acceptor, then the sessions that are left.
struct Server::Impl {
    struct Connection {
        Connection(net::Fd fd, SessionHost& host, std::uint64_t number, std::string peer)
            : session(std::move(fd), host, number, std::move(peer)) {}
        Session session;
        std::atomic<bool> done{false};
        std::thread thread;
    };
    // A client over the limit: it was told so, and is kept until it has read that.
    struct TurnedAway {
        net::Fd fd;
        Deadline until;
    };

    Impl(ServerOptions given, RowSource& rows)
        : options(std::move(given)), host{.options = options, .source = rows, .counters = counters} {}

    void accept_loop() noexcept;
    void accept_from(int listener);
    void admit(net::Fd fd);
    void turn_away(net::Fd fd);
    void reap();
    void drop_turned_away(std::span<const pollfd> polled);

    const ServerOptions options;
    Counters counters;
    SessionHost host;
    net::Fd stop_event;
    net::Fd wake_event;  // a session is done
    std::vector<net::Fd> sockets;
    std::vector<std::string> addresses;
    std::thread acceptor;
    bool running = false;

    // The acceptor's own.
    std::uint64_t last_number = 0;
    Deadline accept_after{};
    std::vector<TurnedAway> turned_away;
    std::vector<pollfd> waits;

    mutable std::mutex mutex;           // guards the list, not what is in it
    std::list<Connection> connections;  // only the acceptor, or stop() after it, changes it
};

void Server::Impl::accept_loop() noexcept {
    while (!host.stopping.load()) {
        const Deadline now = Clock::now();
        const bool paused = now < accept_after;
        waits.clear();
        waits.push_back({stop_event.get(), POLLIN, 0});
        waits.push_back({wake_event.get(), POLLIN, 0});
        for (const net::Fd& socket : sockets) waits.push_back({paused ? -1 : socket.get(), POLLIN, 0});
        for (const TurnedAway& client : turned_away) waits.push_back({client.fd.get(), POLLIN, 0});
        const bool timed = paused || !turned_away.empty();
        const int ready = ::poll(waits.data(), static_cast<nfds_t>(waits.size()),
                                 timed ? static_cast<int>(kAcceptPause.count()) : -1);
        if (ready < 0) {
            // Only the kernel's lack of memory comes here, and it does not wait for us.
            if (errno != EINTR) std::this_thread::sleep_for(kAcceptPause);
            continue;
        }
        if (waits[1].revents != 0) reap();
        drop_turned_away(std::span<const pollfd>(waits).subspan(2 + sockets.size()));
        for (std::size_t i = 0; i < sockets.size(); ++i) {
            if (waits[2 + i].revents != 0) accept_from(sockets[i].get());
        }
    }
}

void Server::Impl::accept_from(int listener) {
    for (int i = 0; i < kAcceptBurst; ++i) {
        net::Fd fd(::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
        if (!fd.open()) {
            if (errno == EINTR || errno == ECONNABORTED) continue;
            // Out of descriptors or memory: the listener stays readable, so look away for a moment.
            if (errno != EAGAIN) accept_after = Clock::now() + kAcceptPause;
            return;
        }
        reap();
        try {
            if (counters.connections.load() >= options.max_connections) {
                turn_away(std::move(fd));
            } else {
                admit(std::move(fd));
            }
        } catch (...) {
            // No memory or no thread to be had: the client sees a closed connection, the others go on.
        }
    }
}

void Server::Impl::admit(net::Fd fd) {
    net::tune(fd.get(), kDeadAfter);
    std::list<Connection> fresh;
    bool counted = false;
    try {
        std::string peer = net::address_text(net::peer_address(fd.get()));
        Connection& connection = fresh.emplace_back(std::move(fd), host, ++last_number, std::move(peer));
        counters.connections.fetch_add(1);
        counted = true;
        connection.thread = std::thread([this, &connection] {
            connection.session.run();
            counters.connections.fetch_sub(1);
            connection.done.store(true);
            signal(wake_event.get());
        });
    } catch (...) {
        if (counted) counters.connections.fetch_sub(1);
        throw;
    }
    const std::scoped_lock lock(mutex);
    connections.splice(connections.end(), fresh);
}

void Server::Impl::turn_away(net::Fd fd) {
    counters.count_refusal(Code::kRefusalBusy);
    const std::string reason =
        "this server has all its " + std::to_string(options.max_connections) + " connections in use";
    std::array<std::byte, wire::kRefusalPrefixBytes + wire::kMaxReasonBytes> payload;
    const std::size_t bytes = wire::encode_refusal({Code::kRefusalBusy, reason}, payload);
    std::array<std::byte, wire::kHeaderBytes> header;
    wire::encode_header({.type = wire::Type::kRefusal, .length = static_cast<std::uint32_t>(bytes)}, header);
    std::array<iovec, 2> parts{net::part(std::span<const std::byte>(header)),
                               net::part(wire::Bytes(payload).first(bytes))};
    // A fresh socket's buffer takes this at once.
    (void)net::send_all(fd.get(), parts, {.deadline = Clock::now()});
    (void)::shutdown(fd.get(), SHUT_WR);
    if (turned_away.size() < kMaxTurnedAway) turned_away.push_back({std::move(fd), Clock::now() + kTurnedAwayTime});
}

void Server::Impl::drop_turned_away(std::span<const pollfd> polled) {
    const Deadline now = Clock::now();
    std::array<std::byte, 4096> waste;
    for (std::size_t i = 0; i < polled.size(); ++i) {
        TurnedAway& client = turned_away[i];
        const bool gone =
            polled[i].revents != 0 && ::recv(client.fd.get(), waste.data(), waste.size(), MSG_DONTWAIT) <= 0;
        if (gone || now >= client.until) client.fd.reset();
    }
    std::erase_if(turned_away, [](const TurnedAway& client) { return !client.fd.open(); });
}

void Server::Impl::reap() {
    eventfd_t ignored = 0;
    (void)::eventfd_read(wake_event.get(), &ignored);
    std::list<Connection> finished;
    {
        const std::scoped_lock lock(mutex);
        for (auto it = connections.begin(); it != connections.end();) {
            const auto next = std::next(it);
            if (it->done.load()) finished.splice(finished.end(), connections, it);
            it = next;
        }
    }
    for (Connection& connection : finished) connection.thread.join();
}

Server::Server(ServerOptions options, RowSource& source) : impl_(std::make_unique<Impl>(std::move(options), source)) {}

Server::~Server() {
    stop();
}

Status Server::listen(const std::string& address) {
    if (impl_->running) return {Code::kInvalid, "the server runs already"};
    if (impl_->host.stopping.load()) return {Code::kInvalid, "a server that was stopped does not start again"};
    net::Fd fd;
    std::string bound;
    if (Status status = open_listener(address, fd, bound); !status.ok()) return status;
    impl_->sockets.push_back(std::move(fd));
    impl_->addresses.push_back(std::move(bound));
    return {};
}

std::vector<std::string> Server::listeners() const {
    return impl_->addresses;
}

Status Server::start() {
    Impl& impl = *impl_;
    const ServerOptions& options = impl.options;
    if (impl.running) return {Code::kInvalid, "the server runs already"};
    if (impl.host.stopping.load()) return {Code::kInvalid, "a server that was stopped does not start again"};
    if (impl.sockets.empty()) return {Code::kInvalid, "there is no address to listen on"};
    if (options.max_rows == 0 || options.max_rows > wire::kMaxRowsCeiling) {
        return {Code::kInvalid, "max_rows " + std::to_string(options.max_rows) + " is not in 1.." +
                                    std::to_string(wire::kMaxRowsCeiling)};
    }
    if (options.chunk_rows == 0 || options.max_connections == 0) {
        return {Code::kInvalid, "chunk_rows and max_connections must be 1 or more"};
    }
    impl.stop_event = net::Fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    impl.wake_event = net::Fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!impl.stop_event.open() || !impl.wake_event.open()) {
        return {Code::kUnreachable, "eventfd: " + net::errno_text(errno)};
    }
    impl.host.stop_fd = impl.stop_event.get();
    try {
        // The acceptor must not run out of memory where it cannot say so.
        impl.turned_away.reserve(kMaxTurnedAway);
        impl.waits.reserve(2 + impl.sockets.size() + kMaxTurnedAway);
        impl.acceptor = std::thread([&impl] { impl.accept_loop(); });
    } catch (const std::exception& error) {
        return {Code::kUnreachable, std::string("no thread or memory to be had: ") + error.what()};
    }
    impl.running = true;
    return {};
}

void Server::stop() noexcept {
    Impl& impl = *impl_;
    if (impl.running) {
        impl.host.stopping.store(true);
        signal(impl.stop_event.get());
        impl.acceptor.join();
        // Each session sees stop_event wherever it waits; nobody but us touches the list now.
        for (Impl::Connection& connection : impl.connections) connection.thread.join();
        const std::scoped_lock lock(impl.mutex);
        impl.connections.clear();
        impl.turned_away.clear();
        impl.running = false;
    }
    impl.sockets.clear();
}

ServerStats Server::stats() const {
    ServerStats out = impl_->counters.snapshot();
    const std::scoped_lock lock(impl_->mutex);
    for (const Impl::Connection& connection : impl_->connections) {
        SessionStats session;
        if (!connection.done.load() && connection.session.snapshot(session)) out.sessions.push_back(std::move(session));
    }
    return out;
}

}  // namespace ofl
