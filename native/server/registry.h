// The tables being served: what the transport asks before it opens a connection, and where its rows come from.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <vector>

#include "table/gather.h"
#include "table/manifest.h"
#include "table/table.h"
#include "transport/ofl_server.h"

namespace engram::server {

// What admit() decides on.
struct TableFacts {
    std::uint32_t layer = 0;
    std::uint64_t rows = 0;
    Digest identity{};
    bool verified = false;
    double progress = 0;  // of loading and verifying, 0 to 1
};

// Ok, or the refusal that answers the request. `facts` is null when the server has no such layer. Pure.
[[nodiscard]] ofl::Status decide(const ofl::OpenRequest& request, const TableFacts* facts);

struct TableView {
    std::uint32_t layer = 0;
    std::uint64_t rows = 0;
    std::uint64_t bytes = 0;
    bool verified = false;
    std::optional<Digest> identity;  // once verified
    double progress = 0;
    double load_s = 0;
    Residency residency;
};

// Threads: one loader calls set_progress() and publish(); any number of others call the rest.
class Registry final : public ofl::RowSource {
  public:
    // Starts the gather threads; the destructor joins them.
    Registry(const Manifest& manifest, const std::vector<std::uint32_t>& layers, unsigned gather_threads);

    void set_progress(std::uint32_t layer, double progress) noexcept;
    void publish(Table table, double load_s);

    [[nodiscard]] bool ready() const noexcept;
    [[nodiscard]] std::vector<TableView> tables() const;

    ofl::Status admit(const ofl::OpenRequest& request, std::uint64_t& table_rows) override;
    void gather(std::uint32_t layer, std::span<const std::uint32_t> ids, std::byte* weights,
                std::byte* scales) override;

  private:
    struct Slot {
        std::uint32_t layer = 0;
        std::uint64_t rows = 0;
        std::uint64_t bytes = 0;
        Digest identity{};
        std::atomic<double> progress{0};
        Table table;  // written before `verified` is set, never after
        double load_s = 0;
        Residency residency;
        std::atomic<bool> verified{false};
    };

    [[nodiscard]] Slot* find(std::uint32_t layer) const noexcept;

    std::vector<std::unique_ptr<Slot>> slots_;  // fixed after construction
    GatherPool pool_;
};

}  // namespace engram::server
