// Copies rows out of a table, prefetching ahead: the rows are random, so a plain loop waits for DRAM on each of them.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

namespace engram {

struct Planes {
    const std::byte* weights = nullptr;
    const std::byte* scales = nullptr;
};

// Row i of `weights`/`scales` becomes row ids[i] of the planes. The caller has checked the ids.
void gather_rows(const Planes& planes, std::span<const std::uint32_t> ids, std::byte* weights,
                 std::byte* scales) noexcept;

// Spreads a big gather over threads. Any number of callers at once; each works on its own request too, so a request is
// never slower than inline by more than the hand-over. No allocation per call.
class GatherPool {
  public:
    // Below this many rows a hand-over costs more than it saves.
    static constexpr std::size_t kThreshold = 1024;
    static constexpr std::size_t kPiece = 256;

    // Starts threads - 1 helpers; the destructor joins them. No caller may be inside gather() by then.
    explicit GatherPool(unsigned threads, std::size_t threshold = kThreshold);
    ~GatherPool();
    GatherPool(const GatherPool&) = delete;
    GatherPool& operator=(const GatherPool&) = delete;

    void gather(const Planes& planes, std::span<const std::uint32_t> ids, std::byte* weights, std::byte* scales);

  private:
    // Lives on the caller's stack; linked into the list while pieces are left, and outlived by its helpers' `inside`.
    struct Job {
        Planes planes;
        std::span<const std::uint32_t> ids;
        std::byte* weights;
        std::byte* scales;
        std::atomic<std::size_t> next{0};
        unsigned inside = 0;  // helpers at work on it; guarded by mutex_
        bool linked = true;   // guarded by mutex_
        Job* following = nullptr;
        std::condition_variable left;
    };

    static void work(Job& job) noexcept;
    void unlink(Job& job) noexcept;
    void helper();

    const std::size_t threshold_;
    std::mutex mutex_;
    std::condition_variable wake_;
    Job* jobs_ = nullptr;  // guarded by mutex_
    bool stopping_ = false;
    std::vector<std::thread> helpers_;
};

}  // namespace engram
