#include "server/registry.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "table/error.h"

namespace engram::server {

ofl::Status decide(const ofl::OpenRequest& request, const TableFacts* facts) {
    if (facts == nullptr) {
        return {ofl::Code::kRefusalLayer, fmt::format("this server has no table for layer {}", request.layer)};
    }
    if (!facts->verified) {
        return {ofl::Code::kRefusalNotReady, fmt::format("layer {} is not ready: {:.0f} % loaded and verified",
                                                         facts->layer, facts->progress * 100)};
    }
    if (request.start >= request.end || request.end > facts->rows) {
        return {ofl::Code::kRefusalRange,
                fmt::format("rows [{}, {}) are {} layer {}, which has {} rows", request.start, request.end,
                            request.start >= request.end ? "no range of" : "not all in", facts->layer, facts->rows)};
    }
    if (request.identity != facts->identity) {
        return {ofl::Code::kRefusalIdentity,
                fmt::format("layer {} here is {}, the reader's manifest says {}", facts->layer,
                            short_hex(facts->identity), short_hex(request.identity))};
    }
    return {};
}

Registry::Registry(const Manifest& manifest, const std::vector<std::uint32_t>& layers, unsigned gather_threads)
    : pool_(gather_threads) {
    for (const std::uint32_t layer : layers) {
        const LayerEntry* const entry = manifest.find(layer);
        if (entry == nullptr) throw ManifestError(fmt::format("{}: layer {} is not in it", manifest.path, layer));
        auto slot = std::make_unique<Slot>();
        slot->layer = layer;
        slot->rows = entry->rows;
        slot->bytes = entry->bytes();
        slot->identity = entry->identity;
        slots_.push_back(std::move(slot));
    }
}

Registry::Slot* Registry::find(std::uint32_t layer) const noexcept {
    for (const auto& slot : slots_) {
        if (slot->layer == layer) return slot.get();
    }
    return nullptr;
}

void Registry::set_progress(std::uint32_t layer, double progress) noexcept {
    Slot* const slot = find(layer);
    if (slot == nullptr) return;
    // Reports come from several threads and may overtake each other; the figure only grows.
    double seen = slot->progress.load();
    while (seen < progress && !slot->progress.compare_exchange_weak(seen, progress)) {
    }
}

void Registry::publish(Table table, double load_s) {
    Slot* const slot = find(table.layer());
    if (slot == nullptr || slot->verified.load()) throw ResourceError("a table was published twice, or uncalled for");
    slot->residency = table.residency();
    slot->table = std::move(table);
    slot->load_s = load_s;
    slot->progress.store(1);
    slot->verified.store(true, std::memory_order_release);
}

bool Registry::ready() const noexcept {
    return std::all_of(slots_.begin(), slots_.end(),
                       [](const auto& slot) { return slot->verified.load(std::memory_order_acquire); });
}

std::vector<TableView> Registry::tables() const {
    std::vector<TableView> views;
    for (const auto& slot : slots_) {
        TableView view{.layer = slot->layer, .rows = slot->rows, .bytes = slot->bytes, .identity = {}, .residency = {}};
        view.verified = slot->verified.load(std::memory_order_acquire);
        view.progress = slot->progress.load();
        if (view.verified) {
            view.identity = slot->table.identity();
            view.load_s = slot->load_s;
            view.residency = slot->residency;
        }
        views.push_back(view);
    }
    return views;
}

ofl::Status Registry::admit(const ofl::OpenRequest& request, std::uint64_t& table_rows) {
    const Slot* const slot = find(request.layer);
    if (slot == nullptr) return decide(request, nullptr);
    const TableFacts facts{.layer = slot->layer,
                           .rows = slot->rows,
                           .identity = slot->identity,
                           .verified = slot->verified.load(std::memory_order_acquire),
                           .progress = slot->progress.load()};
    ofl::Status status = decide(request, &facts);
    if (status.ok()) table_rows = slot->rows;
    return status;
}

void Registry::gather(std::uint32_t layer, std::span<const std::uint32_t> ids, std::byte* weights, std::byte* scales) {
    // Only admitted connections come here, so the slot exists and was verified.
    const Slot* const slot = find(layer);
    pool_.gather(slot->table.planes(), ids, weights, scales);
}

}  // namespace engram::server
