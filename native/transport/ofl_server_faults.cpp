// What a lookup meets instead of its answer when the fault build is told to misbehave.
#include <algorithm>
#include <array>
#include <vector>

#include "transport/ofl_server_session.h"

namespace ofl {

#ifdef OFL_FAULTS
bool Session::fault(std::uint64_t epoch, std::span<const std::uint32_t> ids, Next& outcome) {
    const Faults& faults = host_.options.faults;
    const std::uint64_t number = host_.lookups_seen.fetch_add(1) + 1;
    if (faults.delay_ms > 0) {
        const Deadline until = Clock::now() + std::chrono::milliseconds(faults.delay_ms);
        outcome = Next::kEnd;
        if (net::wait_io(-1, 0, {.deadline = until, .stop_fd = host_.stop_fd}) == net::Io::kStopped) return true;
    }
    if (number != faults.half_frame && number != faults.garbage) return false;
    const auto count = std::min(chunk_rows_, static_cast<std::uint32_t>(ids.size()));
    std::vector<std::byte> frame(wire::kHeaderBytes + wire::rows_bytes(count));
    if (number == faults.half_frame) {
        const std::span<std::byte> all(frame);
        wire::encode_header({.type = wire::Type::kRows,
                             .length = wire::rows_bytes(count),
                             .flags = count == ids.size() ? wire::kFlagLast : 0,
                             .seq = epoch},
                            all.first<wire::kHeaderBytes>());
        wire::encode_rows_prefix({.first = 0, .count = count},
                                 all.subspan<wire::kHeaderBytes, wire::kRowsPrefixBytes>());
        frame.resize(frame.size() / 2);
        outcome = Next::kLinger;
    } else {
        std::uint32_t state = 0x9E3779B9;
        for (std::byte& byte : frame) byte = static_cast<std::byte>((state = state * 1664525 + 1013904223) >> 24);
        outcome = Next::kGoOn;
    }
    std::array<iovec, 1> parts{net::part(std::span<const std::byte>(frame))};
    if (net::send_all(fd_.get(), parts, {.deadline = send_deadline(), .stop_fd = host_.stop_fd}) != net::Io::kDone) {
        outcome = Next::kEnd;
    }
    return true;
}
#else
bool Session::fault(std::uint64_t, std::span<const std::uint32_t>, Next&) {
    return false;
}
#endif

}  // namespace ofl
