// One client's connection on the serving side: handshake, then lookups until either side ends it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "transport/ofl_server.h"
#include "transport/ofl_server_stats.h"
#include "transport/ofl_socket.h"
#include "transport/ofl_wire.h"

namespace ofl {

// What all sessions of a server share; outlives them.
struct SessionHost {
    const ServerOptions& options;
    RowSource& source;
    Counters& counters;
    int stop_fd = -1;                          // turns readable, and stays so, when the server stops
    std::atomic<bool> stopping{false};         // set before stop_fd
    std::atomic<std::uint64_t> opens_seen{0};  // for fault injection
    std::atomic<std::uint64_t> lookups_seen{0};
};

// Threading rule: run() is called once, on one thread, which alone touches the socket; snapshot() from any thread.
class Session {
  public:
    Session(net::Fd fd, SessionHost& host, std::uint64_t number, std::string peer);
    ~Session() = default;
    Session(const Session&) = delete;
    Session& operator=(const Session&) = delete;

    void run() noexcept;  // returns with the connection closed
    // False before the session is open.
    bool snapshot(SessionStats& out) const;

  private:
    enum class State : std::uint8_t { kGreeting, kGreeted, kOpened };
    enum class Next : std::uint8_t { kGoOn, kEnd, kLinger };  // kLinger: let the peer read what was sent

    Next serve();
    Next read_frame(wire::Header& header);
    net::Io fill(std::size_t bytes, Deadline deadline);
    [[nodiscard]] std::string header_trouble(const wire::Verdict& verdict, const wire::Header& header) const;
    Next admit_type(const wire::Header& header);
    Next on_hello(const wire::Header& header);
    Next on_open(const wire::Header& header);
    Next on_lookup(const wire::Header& header);
    Next on_stats(const wire::Header& header);
    Next send_rows(std::uint64_t epoch, std::span<const std::uint32_t> ids);
    // The fault that is due for this lookup takes its place: true, and `outcome` says how it ends.
    bool fault(std::uint64_t epoch, std::span<const std::uint32_t> ids, Next& outcome);

    Next send_frame(wire::Type type, std::uint64_t seq, wire::Bytes payload);
    Next refuse(Code code, std::string_view reason, std::uint64_t seq);
    Next say_close() noexcept;
    void linger() noexcept;

    [[nodiscard]] wire::Bytes payload(const wire::Header& header) const noexcept;
    [[nodiscard]] std::span<std::byte> buffer() noexcept { return std::as_writable_bytes(std::span(words_)); }
    [[nodiscard]] Deadline send_deadline() const { return Clock::now() + host_.options.send_timeout; }

    struct Free {
        void operator()(std::byte* memory) const noexcept { std::free(memory); }
    };

    net::Fd fd_;
    SessionHost& host_;
    const std::uint64_t number_;
    const std::string peer_;
    const Deadline handshake_deadline_;
    State state_ = State::kGreeting;
    wire::Nonce client_nonce_{};
    wire::Nonce server_nonce_{};
    OpenRequest request_;
    std::uint32_t max_rows_ = 0;
    std::uint32_t chunk_rows_ = 0;

    // Requests land here, header first, so that the ids of a LOOKUP are words of their own. Grows once, at OPEN.
    std::vector<std::uint32_t> words_;
    std::size_t have_ = 0;  // bytes of words_ that are filled
    // One chunk of rows: weights, then scales. Allocated at OPEN.
    std::unique_ptr<std::byte, Free> rows_;

    std::atomic<bool> opened_{false};  // publishes request_ to snapshot()
    std::atomic<std::uint64_t> lookups_done_{0};
    std::atomic<std::uint64_t> rows_done_{0};
};

}  // namespace ofl
