#include "server/proc.h"

#include <fstream>
#include <iterator>
#include <limits>
#include <string>

namespace engram::server {

Residency parse_rollup(std::string_view text) {
    // The rollup is one area that spans the whole address space.
    return parse_smaps(text, 0, std::numeric_limits<std::uint64_t>::max());
}

Residency own_memory() {
    std::ifstream file("/proc/self/smaps_rollup");
    const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    return parse_rollup(text);
}

}  // namespace engram::server
