#include "table/memory.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <string>
#include <utility>

#include "table/error.h"

namespace engram {
namespace {

constexpr std::uint64_t kNoLimit = std::numeric_limits<std::uint64_t>::max();

std::size_t round_up(std::size_t bytes, std::size_t to) {
    return (bytes + to - 1) / to * to;
}

std::string slurp(const std::filesystem::path& path) {
    std::ifstream file(path);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
}

// The number after `key` at the start of a line, e.g. "MemAvailable:" or "inactive_file".
std::optional<std::uint64_t> field(std::string_view text, std::string_view key) {
    while (!text.empty()) {
        const std::size_t eol = std::min(text.find('\n'), text.size());
        std::string_view line = text.substr(0, eol);
        text.remove_prefix(std::min(eol + 1, text.size()));
        if (!line.starts_with(key)) continue;
        line.remove_prefix(key.size());
        line.remove_prefix(std::min(line.find_first_not_of(" \t"), line.size()));
        std::uint64_t value = 0;
        if (std::from_chars(line.data(), line.data() + line.size(), value).ec == std::errc{}) return value;
    }
    return std::nullopt;
}

std::uint64_t cgroup_room(const std::filesystem::path& root) {
    const std::string own = slurp(root / "proc/self/cgroup");
    const std::size_t at = own.find("0::/");
    if (at == std::string::npos) return kNoLimit;
    const std::size_t first = at + 4;
    std::filesystem::path group(own.substr(first, own.find('\n', first) - first));
    std::uint64_t room = kNoLimit;
    // A limit binds at every level above as well.
    for (;;) {
        const auto dir = root / "sys/fs/cgroup" / group;
        const auto most = field(slurp(dir / "memory.max"), "");
        const auto used = field(slurp(dir / "memory.current"), "");
        if (most && used) {
            // Clean page cache counts as used but yields at once.
            const std::uint64_t cache = field(slurp(dir / "memory.stat"), "inactive_file").value_or(0);
            const std::uint64_t held = *used - std::min(*used, cache);
            room = std::min(room, *most - std::min(*most, held));
        }
        if (group.empty()) return room;
        group = group.parent_path();
    }
}

}  // namespace

Mapping::Mapping(std::size_t bytes, bool huge_pages)
    : bytes_(bytes), mapped_(round_up(std::max<std::size_t>(bytes, 1), kHugePage)) {
    const std::size_t reserve = mapped_ + kHugePage;
    void* const raw = ::mmap(nullptr, reserve, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (raw == MAP_FAILED) {
        throw ResourceError(fmt::format("cannot map {} bytes of memory: {}", reserve, std::strerror(errno)));
    }
    // Trim the reservation to whole huge pages.
    auto* const start = static_cast<std::byte*>(raw);
    const std::size_t lead =
        round_up(reinterpret_cast<std::uintptr_t>(start), kHugePage) - reinterpret_cast<std::uintptr_t>(start);
    if (lead != 0) ::munmap(start, lead);
    if (kHugePage - lead != 0) ::munmap(start + lead + mapped_, kHugePage - lead);
    data_ = start + lead;
    // Advice only: a kernel without huge pages serves the table on small ones, and residency() shows it.
    static_cast<void>(::madvise(data_, mapped_, huge_pages ? MADV_HUGEPAGE : MADV_NOHUGEPAGE));
    // Nobody wants 189 GiB of public rows in a core file.
    static_cast<void>(::madvise(data_, mapped_, MADV_DONTDUMP));
}

Mapping::Mapping(Mapping&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      mapped_(std::exchange(other.mapped_, 0)) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(mapped_, other.mapped_);
    return *this;
}

Mapping::~Mapping() {
    if (data_ != nullptr) ::munmap(data_, mapped_);
}

void Mapping::seal(bool read_only) const {
    const int protection = read_only ? PROT_READ : PROT_READ | PROT_WRITE;
    if (data_ != nullptr && ::mprotect(data_, mapped_, protection) != 0) {
        throw ResourceError(fmt::format("cannot change the protection of a table: {}", std::strerror(errno)));
    }
}

Residency Mapping::residency() const {
    const auto start = reinterpret_cast<std::uintptr_t>(data_);
    return parse_smaps(slurp("/proc/self/smaps"), start, start + mapped_);
}

Residency parse_smaps(std::string_view smaps, std::uint64_t start, std::uint64_t end) {
    Residency total;
    bool inside = false;
    while (!smaps.empty()) {
        const std::size_t eol = std::min(smaps.find('\n'), smaps.size());
        const std::string_view line = smaps.substr(0, eol);
        smaps.remove_prefix(std::min(eol + 1, smaps.size()));
        // "7f12a0000000-7f12a0200000 rw-p ..." opens an area; "Key:  123 kB" lines describe it.
        std::uint64_t from = 0;
        std::uint64_t to = 0;
        const char* const last = line.data() + line.size();
        const auto first = std::from_chars(line.data(), last, from, 16);
        if (first.ec == std::errc{} && first.ptr != last && *first.ptr == '-' &&
            std::from_chars(first.ptr + 1, last, to, 16).ec == std::errc{}) {
            inside = from < end && to > start;
            continue;
        }
        if (!inside) continue;
        if (const auto kib = field(line, "Rss:")) total.resident += *kib * 1024;
        if (const auto kib = field(line, "AnonHugePages:")) total.huge += *kib * 1024;
    }
    return total;
}

std::uint64_t available_memory(const std::filesystem::path& root) {
    const auto kib = field(slurp(root / "proc/meminfo"), "MemAvailable:");
    const std::uint64_t machine = kib ? *kib * 1024 : kNoLimit;
    return std::min(machine, cgroup_room(root));
}

void require_memory(std::uint64_t bytes, std::uint64_t available) {
    if (bytes <= available) return;
    constexpr double kGib = 1024.0 * 1024.0 * 1024.0;
    throw ResourceError(
        fmt::format("not enough memory: the tables need {:.1f} GiB ({} bytes), {:.1f} GiB ({} bytes) are available",
                    static_cast<double>(bytes) / kGib, bytes, static_cast<double>(available) / kGib, available));
}

}  // namespace engram
