// Loads the tables one after the other, each with all threads, and publishes them as they are verified.
#pragma once

#include <exception>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "server/faults.h"
#include "server/log.h"
#include "server/registry.h"
#include "table/manifest.h"

namespace engram::server {

struct LoadPlan {
    const Manifest* manifest = nullptr;  // outlives the loading
    std::vector<std::uint32_t> layers;
    std::filesystem::path model_dir;
    unsigned threads = 8;
    bool huge_pages = true;
    std::vector<CorruptRow> corrupt;
};

// Owns the loader thread: started by the constructor, stopped and joined by the destructor.
class Loading {
  public:
    Loading(LoadPlan plan, Registry& registry, const Log& log);
    ~Loading();
    Loading(const Loading&) = delete;
    Loading& operator=(const Loading&) = delete;

    // Readable once the loader is done, either way.
    [[nodiscard]] int done_fd() const noexcept { return done_event_; }
    // Call when done_fd() is readable: joins the thread, and throws what stopped it, if anything did.
    void finish();

  private:
    void load_all(const std::stop_token& stop);
    void load_one(std::uint32_t layer, const std::stop_token& stop);

    const LoadPlan plan_;
    Registry& registry_;
    const Log& log_;
    int done_event_ = -1;
    std::exception_ptr error_;  // written by the thread before done_fd() turns readable
    std::jthread thread_;
};

}  // namespace engram::server
