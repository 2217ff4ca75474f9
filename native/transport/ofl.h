// Offload link: how a reader fetches Engram rows from a table server.
//
// A Channel is one opened connection, bound to one (layer, row range, row format, identity). The TCP backend lives in
// ofl_tcp.*; another backend implements Channel and is chosen by the endpoint's scheme in connect().
// Functions report trouble as Status and do not throw, lack of memory aside. Nothing here needs more than the standard
// library.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace ofl {

inline constexpr std::uint32_t kWeightBytes = 256;  // fp8 e4m3 values of one row
inline constexpr std::uint32_t kScaleBytes = 8;     // ue8m0 scales of one row, one per 32 values
inline constexpr std::uint32_t kRowBytes = kWeightBytes + kScaleBytes;
static_assert(kRowBytes == 264);

using Clock = std::chrono::steady_clock;
using Deadline = Clock::time_point;
using Identity = std::array<std::uint8_t, 32>;

// Codes at or below kRefusalIdentity are refusals spoken by the server; the others arise on this side.
enum class Code : std::int32_t {
    kOk = 0,
    kTimeout = -1,
    kDisconnected = -2,
    kProtocol = -3,     // the peer broke the protocol: garbage, wrong epoch, wrong length
    kUnreachable = -4,  // no connection could be made
    kInvalid = -5,      // the caller's arguments
    kUnsupported = -6,  // this build has no such backend
    kRefusalIdentity = -101,
    kRefusalLayer = -102,
    kRefusalRange = -103,
    kRefusalFormat = -104,
    kRefusalVersion = -105,
    kRefusalAuth = -106,
    kRefusalNotReady = -107,
    kRefusalBusy = -108,
    kRefusalMalformed = -109,
    kRefusalNotOpen = -110,
    kRefusalRowId = -111,
    kRefusalCount = -112,
    kRefusalSecondOpen = -113,
    kRefusalTransport = -114,
};

struct [[nodiscard]] Status {
    Code code = Code::kOk;
    std::string reason;

    [[nodiscard]] bool ok() const noexcept { return code == Code::kOk; }
    [[nodiscard]] bool refused() const noexcept { return static_cast<std::int32_t>(code) <= -101; }
};

// In words, e.g. "row format"; for log lines.
[[nodiscard]] const char* code_name(Code code) noexcept;

enum class Scheme : std::uint8_t { kTcp, kRdma };

// tcp://HOST:PORT[@LOCAL] or rdma://HOST:PORT@LOCAL; IPv6 hosts in brackets.
struct Endpoint {
    Scheme scheme = Scheme::kTcp;
    std::string host;
    std::uint16_t port = 0;
    std::string local;  // address of the local end; empty: the kernel chooses (tcp only)
    std::string text;   // as written by the user
};

Status parse_endpoint(std::string_view text, Endpoint& out);

struct OpenRequest {
    std::uint32_t layer = 0;
    std::uint64_t start = 0;  // global row ids, [start, end)
    std::uint64_t end = 0;
    Identity identity{};
    std::uint32_t max_rows = 0;    // largest lookup this channel will ask for
    std::uint64_t generation = 0;  // tells a restarted reader's handshake from a stale one
    std::string key{};             // shared secret; empty: none
};

// The caller's memory that rows are placed into: weights [max_rows][256], scales [max_rows][8]. The caller owns it and
// keeps it alive until the channel's retire() has returned.
struct Staging {
    std::byte* weights = nullptr;
    std::byte* scales = nullptr;
    std::uint32_t max_rows = 0;
};

struct ChannelInfo {
    std::string mode;  // e.g. "tcp, direct placement"
    std::string local;
    std::string peer;
    std::uint64_t table_rows = 0;
    std::uint32_t max_rows = 0;  // the smaller of both sides' limits
    std::uint64_t session = 0;
};

// Threading rule: one thread at a time; the thread that calls lookup() also calls retire().
class Channel {
  public:
    Channel() = default;
    Channel(const Channel&) = delete;
    Channel& operator=(const Channel&) = delete;
    virtual ~Channel() = default;

    // Fetches ids[i] into staging row i for every i, or fails. After kInvalid, kRefusalRowId or kRefusalCount nothing
    // was placed and the channel goes on; after any other failure it is dead, staging holds some of the rows or none,
    // and it may be reused only once retire() has returned.
    virtual Status lookup(std::uint64_t epoch, std::span<const std::uint32_t> ids, Deadline deadline) = 0;

    // Fences the channel: on return no byte can reach staging through it any more. Idempotent.
    virtual void retire() noexcept = 0;

    // The file descriptor that turns readable when the peer goes away, or -1. For an idle liveness check.
    [[nodiscard]] virtual int liveness_fd() const noexcept = 0;

    [[nodiscard]] virtual const ChannelInfo& info() const noexcept = 0;
};

// Connects, authenticates and opens. On success `out` holds the channel.
Status connect(const Endpoint& endpoint, const OpenRequest& request, const Staging& staging, Deadline deadline,
               std::unique_ptr<Channel>& out);

}  // namespace ofl
