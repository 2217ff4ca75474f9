#include "server/faults.h"

#include <fmt/format.h>

#include <charconv>
#include <limits>
#include <stdexcept>
#include <string_view>

namespace engram::server {
namespace {

[[noreturn]] void unknown(const std::string& spec) {
    throw std::invalid_argument(fmt::format(
        "--fault {}: expected corrupt=LAYER:ROW, delay-ms=N, half-frame=N, garbage=N or drop-open=N", spec));
}

template <typename Number>
Number number(std::string_view text, const std::string& spec) {
    Number value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc{} || end != text.data() + text.size()) unknown(spec);
    return value;
}

}  // namespace

FaultPlan parse_faults(const std::vector<std::string>& specs) {
    FaultPlan plan;
    for (const std::string& spec : specs) {
        const std::string_view text(spec);
        const std::size_t equals = text.find('=');
        if (equals == std::string_view::npos) unknown(spec);
        const std::string_view name = text.substr(0, equals);
        const std::string_view value = text.substr(equals + 1);
        if (name == "corrupt") {
            const std::size_t colon = value.find(':');
            if (colon == std::string_view::npos) unknown(spec);
            plan.corrupt.push_back({number<std::uint32_t>(value.substr(0, colon), spec),
                                    number<std::uint64_t>(value.substr(colon + 1), spec)});
        } else if (name == "delay-ms") {
            plan.transport.delay_ms = number<std::uint32_t>(value, spec);
        } else if (name == "half-frame") {
            plan.transport.half_frame = number<std::uint64_t>(value, spec);
        } else if (name == "garbage") {
            plan.transport.garbage = number<std::uint64_t>(value, spec);
        } else if (name == "drop-open") {
            plan.transport.drop_open = number<std::uint64_t>(value, spec);
        } else {
            unknown(spec);
        }
    }
    return plan;
}

}  // namespace engram::server
