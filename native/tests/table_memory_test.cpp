#include <doctest/doctest.h>

#include <cstring>
#include <fstream>

#include "table/error.h"
#include "table/memory.h"
#include "tests/table_fixture.h"

namespace {

void write_under(const std::filesystem::path& root, const char* name, const std::string& text) {
    std::filesystem::create_directories((root / name).parent_path());
    fixture::write_file(root / name, text);
}

}  // namespace

TEST_CASE("memory: a mapping starts on a huge page and is zero") {
    for (const std::size_t bytes : {std::size_t{1}, engram::kHugePage, engram::kHugePage + 1}) {
        const engram::Mapping mapping(bytes, true);
        CHECK(reinterpret_cast<std::uintptr_t>(mapping.data()) % engram::kHugePage == 0);
        CHECK(mapping.size() == bytes);
        CHECK(mapping.bytes().front() == std::byte{0});
        CHECK(mapping.bytes().back() == std::byte{0});
    }
}

TEST_CASE("memory: residency is what was touched; small pages when asked for") {
    const engram::Mapping mapping(4 * engram::kHugePage, false);
    CHECK(mapping.residency().resident < engram::kHugePage);
    std::memset(mapping.data(), 1, mapping.size());
    const engram::Residency after = mapping.residency();
    CHECK(after.resident >= mapping.size());
    // Neighbouring areas with the same flags are merged by the kernel, so only the absence of huge pages is exact.
    CHECK(after.huge == 0);
}

TEST_CASE("memory: huge pages are used where the kernel gives them") {
    std::ifstream file("/sys/kernel/mm/transparent_hugepage/enabled");
    std::string setting;
    std::getline(file, setting);
    const engram::Mapping mapping(4 * engram::kHugePage, true);
    std::memset(mapping.data(), 1, mapping.size());
    const engram::Residency after = mapping.residency();
    CHECK(after.resident >= mapping.size());
    const bool offered =
        setting.find("[always]") != std::string::npos || setting.find("[madvise]") != std::string::npos;
    // A kernel that offers them may still run out of them: then at least the figure must be sane.
    CHECK((offered ? after.huge <= after.resident : after.huge == 0));
}

TEST_CASE("memory: an absurd size is refused with the size") {
    CHECK_THROWS_AS(engram::Mapping(std::size_t{1} << 62, true), engram::ResourceError);
}

TEST_CASE("memory: moving hands the mapping over") {
    engram::Mapping first(100, false);
    std::byte* const data = first.data();
    engram::Mapping second(std::move(first));
    CHECK(second.data() == data);
    engram::Mapping third;
    third = std::move(second);
    CHECK(third.data() == data);
    CHECK(third.size() == 100);
}

TEST_CASE("memory: smaps is summed over the areas that overlap") {
    const char* const text =
        "7f0000000000-7f0000200000 rw-p 00000000 00:00 0 \n"
        "Size:               2048 kB\nRss:                2048 kB\nAnonHugePages:      2048 kB\n"
        "7f0000200000-7f0000400000 rw-p 00000000 00:00 0 \n"
        "Rss:                1024 kB\nAnonHugePages:         0 kB\n"
        "7f0000400000-7f0000600000 rw-p 00000000 00:00 0 \n"
        "Rss:                 512 kB\nAnonHugePages:       512 kB\n";
    const engram::Residency both = engram::parse_smaps(text, 0x7f0000000000, 0x7f0000400000);
    CHECK(both.resident == 3072 * 1024);
    CHECK(both.huge == 2048 * 1024);
    CHECK(engram::parse_smaps(text, 0x7f0000600000, 0x7f0000700000).resident == 0);
    CHECK(engram::parse_smaps("", 0, 10).resident == 0);
}

TEST_CASE("memory: what is available is bounded by every cgroup above") {
    const fixture::TempDir root;
    write_under(root.path(), "proc/meminfo", "MemTotal: 1000 kB\nMemAvailable:    900 kB\n");
    CHECK(engram::available_memory(root.path()) == 900 * 1024);
    write_under(root.path(), "proc/self/cgroup", "0::/outer/inner\n");
    CHECK(engram::available_memory(root.path()) == 900 * 1024);
    write_under(root.path(), "sys/fs/cgroup/outer/memory.max", "500000\n");
    write_under(root.path(), "sys/fs/cgroup/outer/memory.current", "300000\n");
    write_under(root.path(), "sys/fs/cgroup/outer/inner/memory.max", "max\n");
    write_under(root.path(), "sys/fs/cgroup/outer/inner/memory.current", "300000\n");
    CHECK(engram::available_memory(root.path()) == 200000);
    write_under(root.path(), "sys/fs/cgroup/outer/memory.stat", "anon 5\ninactive_file 100000\n");
    CHECK(engram::available_memory(root.path()) == 300000);
    write_under(root.path(), "sys/fs/cgroup/outer/memory.current", "700000\n");
    CHECK(engram::available_memory(root.path()) == 0);
}

TEST_CASE("memory: too little is said with both figures") {
    CHECK_NOTHROW(engram::require_memory(10, 10));
    CHECK_THROWS_WITH_AS(
        engram::require_memory(std::uint64_t{3} << 30, std::uint64_t{1} << 30),
        "not enough memory: the tables need 3.0 GiB (3221225472 bytes), 1.0 GiB (1073741824 bytes) are "
        "available",
        engram::ResourceError);
}
