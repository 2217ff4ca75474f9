// A rank's share of one Engram table, with rows from the table server and the local shard as the exact fallback.
//
// A proxy thread answers one lookup at a time: it owns the channel, and after an error it fences the channel (retire)
// before the local shard may write to staging. An attacher thread makes new channels. Staging is valid from wait()
// until the next enqueue(). A row is the server's or the local shard's, and never anything else: a lookup that neither
// can answer fails.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "reader/lookup_plan.h"
#include "reader/options.h"
#include "reader/stats.h"

namespace engram_remote {

class RemoteTable {
  public:
    // Throws std::runtime_error: the local shard cannot be read, or Options::required and the server not attached.
    explicit RemoteTable(Options options);
    ~RemoteTable();  // closes
    RemoteTable(const RemoteTable&) = delete;
    RemoteTable& operator=(const RemoteTable&) = delete;

    // Starts a lookup. Throws std::out_of_range or std::invalid_argument for ids that cannot be asked for (nothing was
    // sent or read then), std::runtime_error while another lookup is in flight or after close().
    void enqueue(std::span<const std::int64_t> ids);
    void enqueue(std::span<const std::int32_t> ids);
    // Returns when requested row i is staging row i. Throws std::runtime_error when neither side had the rows, or when
    // nothing was enqueued.
    void wait();

    [[nodiscard]] RowPlanes staging() const noexcept;
    [[nodiscard]] std::uint32_t max_rows() const noexcept;
    [[nodiscard]] Counters stats() const;
    [[nodiscard]] std::string mode() const;  // of the last attach; "local" before the first
    void close() noexcept;                   // ends both threads and the connection; a lookup in flight is answered

  private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace engram_remote
