// The documented log lines. Operators and dsv41ctl's check read them.
#pragma once

#include <string>

#include "reader/options.h"
#include "reader/stats.h"
#include "transport/ofl.h"

namespace engram_remote {

// "layer L rank R"
[[nodiscard]] std::string table_name(const Options& options);
// What a channel says of its placement, "tcp, direct placement", as the reader uses it: "tcp, bounce copy".
[[nodiscard]] std::string mode_text(const Options& options, std::string mode);
// "remote rows from URL (MODE, layer L rows [a, b) of N, identity HEX, rank R)"
[[nodiscard]] std::string attach_line(const Options& options, const ofl::ChannelInfo& info);
// "OPEN refused by the server, status -101: REASON (layer L rank R)" or "fallback: layer L rank R: REASON"
[[nodiscard]] std::string failure_line(const Options& options, const ofl::Status& status);
// "layer L rank R: remote_lookups=..."
[[nodiscard]] std::string counters_line(const Options& options, const Counters& counters);

}  // namespace engram_remote
