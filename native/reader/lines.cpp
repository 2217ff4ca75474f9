#include "reader/lines.h"

#include <unistd.h>

namespace engram_remote {
namespace {

std::string hex(const ofl::Identity& identity) {
    constexpr const char* kDigits = "0123456789abcdef";
    std::string text;
    for (const std::uint8_t byte : identity) {
        text += kDigits[byte >> 4];
        text += kDigits[byte & 15];
    }
    return text;
}

}  // namespace

std::string mode_text(const Options& options, std::string mode) {
    const std::string direct = "direct placement";
    const auto at = options.bounce ? mode.find(direct) : std::string::npos;
    if (at != std::string::npos) mode.replace(at, direct.size(), "bounce copy");
    return mode;
}

void log_to_stderr(const std::string& line) {
    const std::string whole = "engram_remote: " + line + "\n";
    // Nothing can be done about a log that takes no bytes.
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, whole.data(), whole.size());
}

std::string table_name(const Options& options) {
    return "layer " + std::to_string(options.layer) + " rank " + std::to_string(options.rank);
}

std::string attach_line(const Options& options, const ofl::ChannelInfo& info) {
    return "remote rows from " + options.endpoint.text + " (" + mode_text(options, info.mode) + ", layer " +
           std::to_string(options.layer) + " rows [" + std::to_string(options.start) + ", " +
           std::to_string(options.end) + ") of " + std::to_string(info.table_rows) + ", identity " +
           hex(options.identity) + ", rank " + std::to_string(options.rank) + ")";
}

std::string failure_line(const Options& options, const ofl::Status& status) {
    if (!status.refused()) return "fallback: " + table_name(options) + ": " + status.reason;
    return "OPEN refused by the server, status " + std::to_string(static_cast<std::int32_t>(status.code)) + ": " +
           status.reason + " (" + table_name(options) + ")";
}

std::string counters_line(const Options& options, const Counters& counters) {
    return table_name(options) + ": " + counters_text(counters);
}

}  // namespace engram_remote
