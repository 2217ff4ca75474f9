#include "reader/read_pool.h"

#include <stdexcept>

namespace engram_remote {

ReadPool::~ReadPool() {
    {
        const std::lock_guard lock(mutex_);
        stop_ = true;
    }
    wake_.notify_all();
    for (std::thread& helper : helpers_) helper.join();
}

void ReadPool::run(std::size_t count, bool alone, const Job& job) {
    if (count == 0) return;
    if (own_.data() == nullptr) own_ = PageBuffer(buffer_bytes_);
    {
        const std::lock_guard lock(mutex_);
        problem_.clear();
        job_ = &job;
        count_ = count;
        next_ = 0;
        if (!alone) {
            add_helpers();
            ++round_;
            inside_ = helpers_.size();
        }
    }
    if (!alone) wake_.notify_all();
    work(own_.data());
    std::unique_lock lock(mutex_);
    done_.wait(lock, [this] { return inside_ == 0; });
    if (!problem_.empty()) throw std::runtime_error(problem_);
}

void ReadPool::work(std::byte* buffer) {
    for (std::size_t at = next_.fetch_add(1); at < count_; at = next_.fetch_add(1)) {
        try {
            (*job_)(at, buffer);
        } catch (const std::exception& error) {
            const std::lock_guard lock(mutex_);
            if (problem_.empty()) problem_ = error.what();
            next_ = count_;
        }
    }
}

void ReadPool::add_helpers() {
    try {
        while (helpers_.size() + 1 < threads_) {
            helpers_.emplace_back([this, buffer = PageBuffer(buffer_bytes_)] { serve(buffer.data()); });
        }
    } catch (const std::exception&) {
        // Out of threads or memory: those that there are do the work, and the next round asks again.
    }
}

void ReadPool::serve(std::byte* buffer) {
    std::size_t seen = 0;
    std::unique_lock lock(mutex_);
    // A helper that starts late must still join the round that it was started for: rounds begin at 1.
    for (;;) {
        wake_.wait(lock, [&] { return stop_ || (round_ != seen && inside_ > 0); });
        if (stop_) return;
        seen = round_;
        lock.unlock();
        work(buffer);
        lock.lock();
        if (--inside_ == 0) done_.notify_one();
    }
}

}  // namespace engram_remote
