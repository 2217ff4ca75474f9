// Where a table lives: anonymous memory on huge pages. It is never registered with a NIC.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>

namespace engram {

inline constexpr std::size_t kHugePage = std::size_t{2} << 20;

struct Residency {
    std::uint64_t resident = 0;
    std::uint64_t huge = 0;
};

// Owns an anonymous mapping that starts on a 2 MiB boundary and spans whole 2 MiB pages. Nothing is touched yet.
class Mapping {
  public:
    Mapping() = default;
    // Throws ResourceError when the machine refuses.
    Mapping(std::size_t bytes, bool huge_pages);
    Mapping(Mapping&& other) noexcept;
    Mapping& operator=(Mapping&& other) noexcept;
    Mapping(const Mapping&) = delete;
    Mapping& operator=(const Mapping&) = delete;
    ~Mapping();

    [[nodiscard]] std::byte* data() const noexcept { return data_; }
    [[nodiscard]] std::size_t size() const noexcept { return bytes_; }
    [[nodiscard]] std::span<std::byte> bytes() const noexcept { return {data_, bytes_}; }

    // A verified table is read only: a stray write stops the server instead of changing rows.
    void seal(bool read_only) const;
    // What the kernel says of these pages (smaps); walks the page table, so not for hot paths.
    [[nodiscard]] Residency residency() const;

  private:
    std::byte* data_ = nullptr;
    std::size_t bytes_ = 0;   // asked for
    std::size_t mapped_ = 0;  // whole huge pages
};

// The part of `smaps` text that lies in [start, end).
[[nodiscard]] Residency parse_smaps(std::string_view smaps, std::uint64_t start, std::uint64_t end);

// What this process may still take: MemAvailable, or what its cgroup leaves when that is less. `root` is / but in
// tests.
[[nodiscard]] std::uint64_t available_memory(const std::filesystem::path& root = "/");
// Throws ResourceError with both figures when `bytes` do not fit.
void require_memory(std::uint64_t bytes, std::uint64_t available);

}  // namespace engram
