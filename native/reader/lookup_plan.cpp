#include "reader/lookup_plan.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <stdexcept>
#include <string>

namespace engram_remote {

LookupPlan::LookupPlan(std::uint64_t start, std::uint64_t end, std::uint32_t max_rows)
    : start_(start), end_(end), max_rows_(max_rows) {
    const std::uint64_t slots = std::bit_ceil(std::uint64_t{max_rows} * 2 + 2);
    mask_ = static_cast<std::uint32_t>(slots - 1);
    slots_.resize(slots);
    unique_.reserve(max_rows);
    source_.reserve(max_rows);
}

void LookupPlan::build(std::span<const std::int64_t> ids) {
    build_from(ids);
}
void LookupPlan::build(std::span<const std::int32_t> ids) {
    build_from(ids);
}

template <typename Id>
void LookupPlan::build_from(std::span<const Id> ids) {
    unique_.clear();
    source_.clear();
    if (ids.size() > max_rows_) {
        throw std::invalid_argument(std::to_string(ids.size()) + " rows asked for, staging holds " +
                                    std::to_string(max_rows_));
    }
    for (const Id id : ids) {
        const auto wide = static_cast<std::int64_t>(id);
        if (wide == kDeadId) continue;
        if (wide < 0 || static_cast<std::uint64_t>(wide) < start_ || static_cast<std::uint64_t>(wide) >= end_) {
            throw std::out_of_range("row id " + std::to_string(wide) + " is outside [" + std::to_string(start_) + ", " +
                                    std::to_string(end_) + ")");
        }
    }
    if (++round_ == 0) {
        std::fill(slots_.begin(), slots_.end(), Slot{});
        round_ = 1;
    }
    for (const Id id : ids) source_.push_back(id == kDeadId ? kDead : index_of(static_cast<std::uint32_t>(id)));
}

std::uint32_t LookupPlan::index_of(std::uint32_t id) {
    // Fibonacci hashing: row ids of one lookup are often close together.
    std::uint32_t at = static_cast<std::uint32_t>((std::uint64_t{id} * 0x9E3779B97F4A7C15u) >> 32) & mask_;
    while (slots_[at].round == round_) {
        if (slots_[at].id == id) return slots_[at].index;
        at = (at + 1) & mask_;
    }
    const auto index = static_cast<std::uint32_t>(unique_.size());
    slots_[at] = {round_, id, index};
    unique_.push_back(id);
    return index;
}

void LookupPlan::expand(RowPlanes from, RowPlanes to) const noexcept {
    // Backwards, in place is safe: a row's source lies at or before it, because unique_ is in order of first use.
    for (std::size_t i = source_.size(); i-- > 0;) {
        std::byte* weight = to.weights + i * ofl::kWeightBytes;
        std::byte* scale = to.scales + i * ofl::kScaleBytes;
        if (source_[i] == kDead) {
            std::memset(weight, 0, ofl::kWeightBytes);
            std::memset(scale, 0, ofl::kScaleBytes);
            continue;
        }
        const std::byte* from_weight = from.weights + std::size_t{source_[i]} * ofl::kWeightBytes;
        const std::byte* from_scale = from.scales + std::size_t{source_[i]} * ofl::kScaleBytes;
        if (from_weight == weight) continue;
        std::memcpy(weight, from_weight, ofl::kWeightBytes);
        std::memcpy(scale, from_scale, ofl::kScaleBytes);
    }
}

}  // namespace engram_remote
