// The serving side of the offload link. Owns listeners and one thread a connection; rows come from a RowSource.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "transport/ofl.h"

namespace ofl {

// What the server serves. Implementations are thread-safe: every connection thread calls them.
class RowSource {
  public:
    virtual ~RowSource() = default;

    // Checks layer, readiness, range and identity; ok() or the refusal to send. Fills table_rows on success.
    virtual Status admit(const OpenRequest& request, std::uint64_t& table_rows) = 0;

    // Copies rows (all ids were checked against the opened range) into two planes.
    virtual void gather(std::uint32_t layer, std::span<const std::uint32_t> ids, std::byte* weights,
                        std::byte* scales) = 0;
};

// Fault injection, compiled in with OFL_FAULTS only; all off by default. Counts are per server, first lookup is 1.
struct Faults {
    std::uint32_t delay_ms = 0;    // before every answer to a LOOKUP
    std::uint64_t half_frame = 0;  // this lookup's answer is cut in half, then the connection is closed
    std::uint64_t garbage = 0;     // this lookup's answer is garbage of the right length
    std::uint64_t drop_open = 0;   // this OPEN is met with a closed connection
};

struct ServerOptions {
    std::uint32_t max_rows = 65536;
    std::uint32_t max_connections = 64;
    std::uint32_t chunk_rows = 2048;                    // rows of one ROWS frame
    std::string key{};                                  // shared secret; empty: none asked for
    std::chrono::milliseconds handshake_timeout{5000};  // from accept to OPEN_ACK
    std::chrono::milliseconds frame_timeout{5000};      // from a request's first byte to its last
    std::chrono::milliseconds send_timeout{30000};      // for one answer; a client that reads nothing is dropped
    Faults faults{};
};

struct SessionStats {
    std::uint64_t session = 0;
    std::string peer;
    std::uint32_t layer = 0;
    std::uint64_t start = 0;
    std::uint64_t end = 0;
    std::uint64_t lookups = 0;
    std::uint64_t rows = 0;
};

struct GatherStats {
    std::uint64_t count = 0;
    double p50_us = 0, p99_us = 0, mean_us = 0, max_us = 0;
};

struct ServerStats {
    std::uint64_t connections = 0;
    std::uint64_t opens_current = 0;
    std::uint64_t opens_total = 0;
    std::uint64_t lookups = 0;
    std::uint64_t rows = 0;
    std::uint64_t bytes = 0;
    std::uint64_t refusals_total = 0;
    std::map<std::int32_t, std::uint64_t> refusals_by_code;
    GatherStats gather;
    std::vector<SessionStats> sessions;
};

class Server {
  public:
    Server(ServerOptions options, RowSource& source);
    ~Server();  // stops
    Server(const Server&) = delete;
    Server& operator=(const Server&) = delete;

    // Binds ADDRESS:PORT exactly (port 0: any; IPv6 in brackets). Refuses wildcard addresses. Before start() only.
    Status listen(const std::string& address);
    // The bound addresses, ports resolved.
    [[nodiscard]] std::vector<std::string> listeners() const;

    Status start();
    void stop() noexcept;  // closes listeners and sessions, joins every thread; idempotent
    [[nodiscard]] ServerStats stats() const;

  private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace ofl
