// Fault injection of the fault build: what --fault means.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "transport/ofl_server.h"

namespace engram::server {

struct CorruptRow {
    std::uint32_t layer = 0;
    std::uint64_t row = 0;
};

struct FaultPlan {
    ofl::Faults transport;
    std::vector<CorruptRow> corrupt;  // after verification
};

// Throws std::invalid_argument that names the specification it does not know. Pure.
[[nodiscard]] FaultPlan parse_faults(const std::vector<std::string>& specs);

}  // namespace engram::server
