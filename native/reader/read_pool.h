// Threads for blocking reads: an NVMe is fast only when many requests wait for it at once.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "reader/page_buffer.h"

namespace engram_remote {

class ReadPool {
  public:
    // A job gets its number and a buffer of its thread's own.
    using Job = std::function<void(std::size_t, std::byte*)>;

    // No thread starts before the first run() that wants them.
    ReadPool(unsigned threads, std::size_t buffer_bytes) : threads_(threads), buffer_bytes_(buffer_bytes) {}
    ~ReadPool();
    ReadPool(const ReadPool&) = delete;
    ReadPool& operator=(const ReadPool&) = delete;

    // Runs jobs 0..count on the pool and the calling thread (`alone`: on that one only) and returns when all are done.
    // Throws std::runtime_error with the first job's complaint. One caller at a time.
    void run(std::size_t count, bool alone, const Job& job);

  private:
    void work(std::byte* buffer);
    void add_helpers();
    void serve(std::byte* buffer);

    unsigned threads_;
    std::size_t buffer_bytes_;
    PageBuffer own_;

    std::mutex mutex_;
    std::condition_variable wake_;
    std::condition_variable done_;
    std::vector<std::thread> helpers_;
    std::size_t round_ = 0;   // a helper joins each round once
    std::size_t inside_ = 0;  // helpers that still work on this round
    bool stop_ = false;
    std::string problem_;

    // Set before a round begins, under the mutex.
    const Job* job_ = nullptr;
    std::size_t count_ = 0;
    std::atomic<std::size_t> next_{0};
};

}  // namespace engram_remote
