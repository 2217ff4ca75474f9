// What one lookup asks for: each distinct live row once, and where every requested row comes from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "transport/ofl.h"

namespace engram_remote {

inline constexpr std::int64_t kDeadId = -1;  // gives a row of zeros and never leaves this process

// Rows in two planes, as in staging.
struct RowPlanes {
    std::byte* weights = nullptr;  // [n][256]
    std::byte* scales = nullptr;   // [n][8]
};

// Reused from lookup to lookup: no allocation once it has seen a lookup of max_rows rows.
class LookupPlan {
  public:
    LookupPlan(std::uint64_t start, std::uint64_t end, std::uint32_t max_rows);

    // Checks every id before anything else happens. Throws std::out_of_range for an id that is neither in [start, end)
    // nor -1, std::invalid_argument for more than max_rows ids; the plan is then empty.
    void build(std::span<const std::int64_t> ids);
    void build(std::span<const std::int32_t> ids);

    // Distinct live ids in the order of their first use.
    [[nodiscard]] std::span<const std::uint32_t> unique() const noexcept { return unique_; }
    [[nodiscard]] std::size_t requested() const noexcept { return source_.size(); }

    // `from` holds row unique()[k] at k; afterwards `to` holds requested row i at i. `from` and `to` may be the same.
    void expand(RowPlanes from, RowPlanes to) const noexcept;

  private:
    static constexpr std::uint32_t kDead = UINT32_MAX;

    struct Slot {
        std::uint32_t round = 0;
        std::uint32_t id = 0;
        std::uint32_t index = 0;
    };

    template <typename Id>
    void build_from(std::span<const Id> ids);
    std::uint32_t index_of(std::uint32_t id);

    std::uint64_t start_;
    std::uint64_t end_;
    std::uint32_t max_rows_;
    std::uint32_t mask_;
    std::uint32_t round_ = 0;            // marks the slots of this lookup, so that none need clearing
    std::vector<Slot> slots_;            // open addressing, at most half full
    std::vector<std::uint32_t> unique_;  // id of each distinct row
    std::vector<std::uint32_t> source_;  // for each requested row: index into unique_, or kDead
};

}  // namespace engram_remote
