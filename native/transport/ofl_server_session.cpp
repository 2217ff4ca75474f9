#include "transport/ofl_server_session.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <new>
#include <utility>

#include "transport/ofl_auth.h"

namespace ofl {
namespace {

using net::Io;

constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr std::chrono::milliseconds kLingerTime{200};
constexpr std::size_t kLingerBytes = 1U << 20;
constexpr std::size_t kRowAlignment = 64;  // a cache line
constexpr std::size_t kIdsWord = (wire::kHeaderBytes + wire::kLookupPrefixBytes) / 4;
constexpr std::size_t kHandshakeWords = (wire::kHeaderBytes + wire::kOpenBytes) / 4;
static_assert(wire::kOpenBytes >= wire::kHelloBytes);

std::string range_text(const OpenRequest& request) {
    return "[" + std::to_string(request.start) + ", " + std::to_string(request.end) + ")";
}

}  // namespace

Session::Session(net::Fd fd, SessionHost& host, std::uint64_t number, std::string peer)
    : fd_(std::move(fd)),
      host_(host),
      number_(number),
      peer_(std::move(peer)),
      handshake_deadline_(Clock::now() + host.options.handshake_timeout),
      words_(kHandshakeWords) {}

bool Session::snapshot(SessionStats& out) const {
    if (!opened_.load(std::memory_order_acquire)) return false;
    out.session = number_;
    out.peer = peer_;
    out.layer = request_.layer;
    out.start = request_.start;
    out.end = request_.end;
    out.lookups = lookups_done_.load(kRelaxed);
    out.rows = rows_done_.load(kRelaxed);
    return true;
}

void Session::run() noexcept {
    Next end = Next::kEnd;
    try {
        end = serve();
    } catch (...) {
        // No memory, or the row source failed: this connection ends, the server goes on.
    }
    if (state_ == State::kOpened) host_.counters.opens_current.fetch_sub(1, kRelaxed);
    if (end == Next::kLinger) linger();
    fd_.reset();
}

Session::Next Session::serve() {
    for (;;) {
        wire::Header header;
        Next next = read_frame(header);
        if (next != Next::kGoOn) return next;
        switch (header.type) {
            case wire::Type::kHello:
                next = on_hello(header);
                break;
            case wire::Type::kOpen:
                next = on_open(header);
                break;
            case wire::Type::kLookup:
                next = on_lookup(header);
                break;
            case wire::Type::kStats:
                next = on_stats(header);
                break;
            default:
                return Next::kEnd;  // CLOSE
        }
        if (next != Next::kGoOn) return next;
        // A client that never pauses never lets us sleep on stop_fd.
        if (host_.stopping.load(kRelaxed)) return say_close();
        const std::size_t used = wire::kHeaderBytes + header.length;
        have_ -= used;
        if (have_ > 0) std::memmove(buffer().data(), buffer().data() + used, have_);
    }
}

Io Session::fill(std::size_t bytes, Deadline deadline) {
    if (have_ >= bytes) return Io::kDone;
    std::array<iovec, 1> parts{net::part(buffer().subspan(have_))};
    const net::Limits limits{.deadline = deadline, .stop_fd = host_.stop_fd, .spin = net::spin_time()};
    std::size_t got = 0;
    const Io io = net::receive(fd_.get(), parts, bytes - have_, limits, got);
    have_ += got;
    return io;
}

Session::Next Session::read_frame(wire::Header& header) {
    Deadline deadline = handshake_deadline_;
    if (state_ == State::kOpened) {
        // Idle as long as it likes; but a frame once begun must come to its end. Mostly one call takes it whole.
        const Io io = fill(1, Deadline::max());
        if (io == Io::kStopped) return say_close();
        if (io != Io::kDone) return Next::kEnd;
        deadline = Clock::now() + host_.options.frame_timeout;
    }
    if (fill(wire::kHeaderBytes, deadline) != Io::kDone) return Next::kEnd;
    if (const auto verdict = wire::decode_header(buffer().first(wire::kHeaderBytes), header); !verdict.ok()) {
        const std::string versions =
            ": " + std::to_string(header.version) + ", this server speaks " + std::to_string(wire::kVersion);
        return refuse(verdict.code, verdict.why + (verdict.code == Code::kRefusalVersion ? versions : ""), header.seq);
    }
    if (const auto verdict = wire::check_request(header, host_.options.max_rows); !verdict.ok()) {
        return refuse(verdict.code, header_trouble(verdict, header), header.seq);
    }
    if (const Next next = admit_type(header); next != Next::kGoOn) return next;
    const std::size_t frame = wire::kHeaderBytes + header.length;
    if (have_ >= frame) return Next::kGoOn;
    return fill(frame, deadline) == Io::kDone ? Next::kGoOn : Next::kEnd;
}

std::string Session::header_trouble(const wire::Verdict& verdict, const wire::Header& header) const {
    const auto number = [](std::uint64_t value) { return std::to_string(value); };
    return std::string(verdict.why) + ": type " + number(static_cast<std::uint16_t>(header.type)) + ", " +
           number(header.length) + " bytes, flags " + number(header.flags) + "; a LOOKUP here has up to " +
           number(wire::lookup_bytes(host_.options.max_rows)) + " bytes";
}

// Whether this type may come now; decided by the header, so that no payload is read for a frame that may not.
Session::Next Session::admit_type(const wire::Header& header) {
    switch (header.type) {
        case wire::Type::kHello:
            if (state_ == State::kGreeting) return Next::kGoOn;
            return refuse(Code::kRefusalMalformed, "HELLO comes once, first", header.seq);
        case wire::Type::kOpen:
            if (state_ == State::kGreeted) return Next::kGoOn;
            if (state_ == State::kGreeting) return refuse(Code::kRefusalMalformed, "OPEN before HELLO", header.seq);
            return refuse(Code::kRefusalSecondOpen,
                          "this connection is open for layer " + std::to_string(request_.layer) + " rows " +
                              range_text(request_) + " already",
                          header.seq);
        case wire::Type::kLookup:
        case wire::Type::kStats:
            if (state_ == State::kOpened) return Next::kGoOn;
            return refuse(Code::kRefusalNotOpen, std::string(wire::type_name(header.type)) + " before OPEN",
                          header.seq);
        default:
            return Next::kGoOn;  // CLOSE is always welcome; check_request() left nothing else
    }
}

wire::Bytes Session::payload(const wire::Header& header) const noexcept {
    return std::as_bytes(std::span(words_)).subspan(wire::kHeaderBytes, header.length);
}

Session::Next Session::on_hello(const wire::Header& header) {
    wire::Hello hello;
    if (const auto verdict = wire::decode_hello(payload(header), hello); !verdict.ok()) {
        return refuse(verdict.code, verdict.why, header.seq);
    }
    if (hello.min_version > wire::kVersion || hello.max_version < wire::kVersion) {
        return refuse(Code::kRefusalVersion,
                      "this server speaks version " + std::to_string(wire::kVersion) + ", the reader " +
                          std::to_string(hello.min_version) + " to " + std::to_string(hello.max_version),
                      header.seq);
    }
    client_nonce_ = hello.nonce;
    if (!auth::random_bytes(server_nonce_)) return Next::kEnd;
    std::array<std::byte, wire::kHelloAckBytes> ack;
    wire::encode_hello_ack(
        {.auth_required = !host_.options.key.empty(), .max_rows = host_.options.max_rows, .nonce = server_nonce_}, ack);
    state_ = State::kGreeted;
    return send_frame(wire::Type::kHelloAck, header.seq, ack);
}

Session::Next Session::on_open(const wire::Header& header) {
#ifdef OFL_FAULTS
    if (host_.opens_seen.fetch_add(1) + 1 == host_.options.faults.drop_open) return Next::kEnd;
#endif
    const ServerOptions& options = host_.options;
    wire::Open open;
    if (const auto verdict = wire::decode_open(payload(header), open); !verdict.ok()) {
        return refuse(verdict.code, verdict.why, header.seq);
    }
    // Who holds no key learns nothing about the tables.
    if (!options.key.empty()) {
        const wire::Bytes message = payload(header).first(wire::kOpenBytes - wire::kMacBytes);
        const auth::Digest mac = auth::handshake_mac(options.key, client_nonce_, server_nonce_, "open", message);
        if (!auth::equal(open.mac, mac)) {
            const bool none = open.mac == wire::Mac{};
            return refuse(Code::kRefusalAuth,
                          none ? "this server asks for a shared key and the reader has none"
                               : "the reader's shared key is not this server's",
                          header.seq);
        }
    }
    if (open.row_bytes != kRowBytes || open.format != wire::kFormatTwoPlanes) {
        return refuse(Code::kRefusalFormat,
                      "rows here are 264 bytes of format 1, the reader asks for " + std::to_string(open.row_bytes) +
                          " bytes of format " + std::to_string(open.format),
                      header.seq);
    }
    if (open.transport != wire::kTransportTcp) {
        return refuse(Code::kRefusalTransport,
                      "this server offers transport 0 (tcp), the reader asks for " + std::to_string(open.transport),
                      header.seq);
    }
    request_.layer = open.layer;
    request_.start = open.start;
    request_.end = open.end;
    request_.identity = open.identity;
    request_.generation = open.generation;
    request_.max_rows = max_rows_ = std::min(open.max_rows, options.max_rows);
    chunk_rows_ = std::min(options.chunk_rows, max_rows_);
    std::uint64_t table_rows = 0;
    if (const Status status = host_.source.admit(request_, table_rows); !status.ok()) {
        return refuse(status.refused() ? status.code : Code::kRefusalNotReady, status.reason, header.seq);
    }
    if (open.start >= open.end || open.end > table_rows) {
        return refuse(
            Code::kRefusalRange,
            "rows " + range_text(request_) + " are no part of a table of " + std::to_string(table_rows) + " rows",
            header.seq);
    }

    // Only now does the connection cost memory: the largest request, and one chunk of rows.
    words_.resize(kIdsWord + options.max_rows);
    rows_.reset(static_cast<std::byte*>(std::aligned_alloc(
        kRowAlignment, (std::size_t{chunk_rows_} * kRowBytes + kRowAlignment - 1) / kRowAlignment * kRowAlignment)));
    if (rows_ == nullptr) throw std::bad_alloc();

    std::array<std::byte, wire::kOpenAckBytes> ack_bytes;
    wire::OpenAck ack{.table_rows = table_rows,
                      .max_rows = max_rows_,
                      .chunk_rows = chunk_rows_,
                      .session = number_,
                      .identity = open.identity};
    wire::encode_open_ack(ack, ack_bytes);
    if (!options.key.empty()) {
        const wire::Bytes message = wire::Bytes(ack_bytes).first(wire::kOpenAckBytes - wire::kMacBytes);
        ack.mac = auth::handshake_mac(options.key, client_nonce_, server_nonce_, "ack", message);
        wire::encode_open_ack(ack, ack_bytes);
    }
    state_ = State::kOpened;
    host_.counters.opens_current.fetch_add(1, kRelaxed);
    host_.counters.opens_total.fetch_add(1, kRelaxed);
    opened_.store(true, std::memory_order_release);
    return send_frame(wire::Type::kOpenAck, header.seq, ack_bytes);
}

Session::Next Session::on_lookup(const wire::Header& header) {
    std::uint32_t count = 0;
    if (const auto verdict = wire::decode_lookup_prefix(payload(header), header.length, count); !verdict.ok()) {
        return refuse(verdict.code, verdict.why, header.seq);
    }
    if (count == 0 || count > max_rows_) {
        return refuse(
            Code::kRefusalCount,
            std::to_string(count) + " rows in one lookup, this connection takes 1 to " + std::to_string(max_rows_),
            header.seq);
    }
    const std::span<const std::uint32_t> ids = std::span<const std::uint32_t>(words_).subspan(kIdsWord, count);
    std::uint32_t low = ids.front();
    std::uint32_t high = ids.front();
    for (const std::uint32_t id : ids) {
        low = std::min(low, id);
        high = std::max(high, id);
    }
    if (low < request_.start || high >= request_.end) {
        return refuse(
            Code::kRefusalRowId,
            "row id " + std::to_string(low < request_.start ? low : high) + " is outside " + range_text(request_),
            header.seq);
    }
    Next outcome = Next::kEnd;
    if (fault(header.seq, ids, outcome)) return outcome;
    return send_rows(header.seq, ids);
}

Session::Next Session::send_rows(std::uint64_t epoch, std::span<const std::uint32_t> ids) {
    const auto total = static_cast<std::uint32_t>(ids.size());
    std::byte* const weights = rows_.get();
    std::byte* const scales = weights + std::size_t{chunk_rows_} * kWeightBytes;
    std::chrono::nanoseconds gathering{0};
    std::array<std::byte, wire::kHeaderBytes + wire::kRowsPrefixBytes> head;
    const std::span<std::byte, head.size()> head_span(head);
    net::Limits limits{.stop_fd = host_.stop_fd};
    for (std::uint32_t first = 0; first < total;) {
        // The kernel sends this chunk on while the next one is gathered.
        const std::uint32_t count = std::min(chunk_rows_, total - first);
        const auto before = Clock::now();
        host_.source.gather(request_.layer, ids.subspan(first, count), weights, scales);
        const auto after = Clock::now();
        gathering += after - before;
        if (first == 0) limits.deadline = after + host_.options.send_timeout;
        const bool last = first + count == total;
        wire::encode_header({.type = wire::Type::kRows,
                             .length = wire::rows_bytes(count),
                             .flags = last ? wire::kFlagLast : 0,
                             .seq = epoch},
                            head_span.first<wire::kHeaderBytes>());
        wire::encode_rows_prefix({.first = first, .count = count}, head_span.last<wire::kRowsPrefixBytes>());
        if (last) {
            // Counted before the client can see the end, so that its next look at the counters includes this lookup.
            host_.counters.gather.add(gathering);
            host_.counters.lookups.fetch_add(1, kRelaxed);
            host_.counters.rows.fetch_add(total, kRelaxed);
            lookups_done_.fetch_add(1, kRelaxed);
            rows_done_.fetch_add(total, kRelaxed);
        }
        std::array<iovec, 3> parts{net::part(std::span<const std::byte>(head)),
                                   iovec{weights, std::size_t{count} * kWeightBytes},
                                   iovec{scales, std::size_t{count} * kScaleBytes}};
        if (net::send_all(fd_.get(), parts, limits) != Io::kDone || host_.stopping.load(kRelaxed)) return Next::kEnd;
        first += count;
    }
    return Next::kGoOn;
}

Session::Next Session::on_stats(const wire::Header& header) {
    const std::string json = stats_json(host_.counters.snapshot());
    return send_frame(wire::Type::kStatsAck, header.seq, std::as_bytes(std::span(json.data(), json.size())));
}

Session::Next Session::send_frame(wire::Type type, std::uint64_t seq, wire::Bytes payload) {
    std::array<std::byte, wire::kHeaderBytes> header;
    wire::encode_header({.type = type, .length = static_cast<std::uint32_t>(payload.size()), .seq = seq}, header);
    std::array<iovec, 2> parts{net::part(std::span<const std::byte>(header)), net::part(payload)};
    const net::Limits limits{.deadline = send_deadline(), .stop_fd = host_.stop_fd};
    return net::send_all(fd_.get(), parts, limits) == Io::kDone ? Next::kGoOn : Next::kEnd;
}

// A courtesy while the server stops: it may not wait.
Session::Next Session::say_close() noexcept {
    std::array<std::byte, wire::kHeaderBytes> header;
    wire::encode_header({.type = wire::Type::kClose}, header);
    std::array<iovec, 1> parts{net::part(std::span<const std::byte>(header))};
    (void)net::send_all(fd_.get(), parts, {.deadline = Clock::now()});
    return Next::kEnd;
}

// -111 and -112 leave the connection open; every other refusal ends it.
Session::Next Session::refuse(Code code, std::string_view reason, std::uint64_t seq) {
    host_.counters.count_refusal(code);
    std::array<std::byte, wire::kRefusalPrefixBytes + wire::kMaxReasonBytes> payload;
    const std::size_t bytes = wire::encode_refusal({code, reason}, payload);
    const Next next = send_frame(wire::Type::kRefusal, seq, wire::Bytes(payload).first(bytes));
    if (next != Next::kGoOn) return next;
    return code == Code::kRefusalRowId || code == Code::kRefusalCount ? Next::kGoOn : Next::kLinger;
}

// Closing a socket with unread bytes resets it, and a reset may overtake the refusal: read on for a moment.
void Session::linger() noexcept {
    (void)::shutdown(fd_.get(), SHUT_WR);
    const net::Limits limits{.deadline = Clock::now() + kLingerTime, .stop_fd = host_.stop_fd};
    std::array<std::byte, 4096> waste;
    for (std::size_t total = 0; total < kLingerBytes;) {
        std::array<iovec, 1> parts{net::part(std::span<std::byte>(waste))};
        std::size_t got = 0;
        if (net::receive(fd_.get(), parts, 1, limits, got) != Io::kDone) return;
        total += got;
    }
}

}  // namespace ofl
