// A server that is none: it says what a script says, to a reader's channel.
#pragma once

#include <doctest/doctest.h>

#include <array>
#include <functional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "transport/ofl_server_listen.h"
#include "transport_fixture.h"

namespace transport_test {

using Script = std::function<void(RawPeer&)>;

// Takes one connection and does what the script says. The thread is joined by the destructor.
class Liar {
  public:
    explicit Liar(Script script) {
        REQUIRE(ofl::open_listener("127.0.0.1:0", listener_, address_).ok());
        thread_ = std::thread([this, script = std::move(script)] {
            if (ofl::net::wait_io(listener_.get(), POLLIN, {.deadline = in(milliseconds(10000))}) !=
                ofl::net::Io::kDone) {
                return;
            }
            RawPeer peer(ofl::net::Fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC)));
            script(peer);
        });
    }
    ~Liar() { thread_.join(); }
    Liar(const Liar&) = delete;
    Liar& operator=(const Liar&) = delete;

    [[nodiscard]] const std::string& address() const { return address_; }

  private:
    ofl::net::Fd listener_;
    std::string address_;
    std::thread thread_;
};

inline void send_hello_ack(RawPeer& peer, const wire::HelloAck& ack = {.max_rows = 4096}) {
    std::array<std::byte, wire::kHelloAckBytes> bytes;
    wire::encode_hello_ack(ack, bytes);
    peer.receive_frame();
    peer.send_frame(wire::Type::kHelloAck, bytes);
}

inline void send_open_ack(RawPeer& peer, const wire::OpenAck& ack) {
    std::array<std::byte, wire::kOpenAckBytes> bytes;
    wire::encode_open_ack(ack, bytes);
    peer.receive_frame();
    peer.send_frame(wire::Type::kOpenAck, bytes);
}

inline wire::OpenAck good_ack(std::uint32_t chunk_rows = 64) {
    return {.table_rows = kTableRows, .max_rows = 4096, .chunk_rows = chunk_rows, .session = 1, .identity = identity()};
}

inline void greet(RawPeer& peer, std::uint32_t chunk_rows = 64) {
    send_hello_ack(peer);
    send_open_ack(peer, good_ack(chunk_rows));
}

inline std::vector<std::byte> rows_payload(std::uint32_t first, std::span<const std::uint32_t> ids) {
    std::vector<std::byte> payload(wire::rows_bytes(static_cast<std::uint32_t>(ids.size())));
    wire::encode_rows_prefix({first, static_cast<std::uint32_t>(ids.size())},
                             std::span(payload).first<wire::kRowsPrefixBytes>());
    FakeRows rows;
    std::byte* const weights = payload.data() + wire::kRowsPrefixBytes;
    rows.gather(kLayer, ids, weights, weights + ids.size() * ofl::kWeightBytes);
    return payload;
}

inline std::vector<std::byte> frame_bytes(const wire::Header& header, wire::Bytes payload) {
    std::vector<std::byte> bytes(wire::kHeaderBytes);
    wire::encode_header(header, std::span(bytes).first<wire::kHeaderBytes>());
    bytes.insert(bytes.end(), payload.begin(), payload.end());
    return bytes;
}

inline std::vector<std::byte> rows_frame(std::uint64_t epoch, std::uint32_t first, std::span<const std::uint32_t> ids,
                                         bool last) {
    const auto payload = rows_payload(first, ids);
    return frame_bytes({.type = wire::Type::kRows,
                        .length = static_cast<std::uint32_t>(payload.size()),
                        .flags = last ? wire::kFlagLast : 0,
                        .seq = epoch},
                       payload);
}

inline std::vector<std::byte> refusal_frame(Code code, std::string_view reason, std::uint64_t seq) {
    std::array<std::byte, wire::kRefusalPrefixBytes + wire::kMaxReasonBytes> payload;
    const std::size_t size = wire::encode_refusal({code, reason}, payload);
    return frame_bytes({.type = wire::Type::kRefusal, .length = static_cast<std::uint32_t>(size), .seq = seq},
                       wire::Bytes(payload).first(size));
}

inline const std::vector<std::uint32_t>& ids() {
    static const auto all = some_ids(100);
    return all;
}

inline std::span<const std::uint32_t> part_of(std::size_t first, std::size_t count) {
    return std::span(ids()).subspan(first, count);
}

}  // namespace transport_test
