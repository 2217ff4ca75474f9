#include "table/segments.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <limits>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "table/error.h"
#include "table/file.h"

namespace engram {
namespace {

// Hashed and placed a piece at a time, while the piece is still in the core's cache.
constexpr std::size_t kPiece = std::size_t{1} << 20;
static_assert(kPiece % kDirectAlign == 0);

struct Plane {
    const PlaneSource* source;
    File file;
    std::byte* target;
};

struct Item {
    std::size_t plane;
    std::size_t segment;
};

struct FreeDeleter {
    void operator()(std::byte* memory) const noexcept { std::free(memory); }
};
using Bounce = std::unique_ptr<std::byte, FreeDeleter>;

Bounce make_bounce() {
    // Room for a piece whose start lies anywhere in its first aligned block.
    void* const memory = std::aligned_alloc(kDirectAlign, kPiece + kDirectAlign);
    if (memory == nullptr) throw ResourceError("not enough memory for a read buffer");
    return Bounce(static_cast<std::byte*>(memory));
}

// Returns the piece's bytes: in `target` when the file reads straight into it, else in the bounce buffer.
std::span<const std::byte> read_piece(const File& file, std::uint64_t offset, std::size_t bytes, std::byte* target,
                                      std::byte* bounce) {
    if (!file.direct()) {
        std::byte* const into = target != nullptr ? target : bounce;
        file.read(offset, {into, bytes});
        return {into, bytes};
    }
    const std::uint64_t start = offset / kDirectAlign * kDirectAlign;
    const auto lead = static_cast<std::size_t>(offset - start);
    const std::size_t need = lead + bytes;
    const std::size_t ask = (need + kDirectAlign - 1) / kDirectAlign * kDirectAlign;
    const bool straight =
        target != nullptr && need == ask && lead == 0 && reinterpret_cast<std::uintptr_t>(target) % kDirectAlign == 0;
    std::byte* const into = straight ? target : bounce;
    file.read_aligned(start, {into, ask}, need);
    if (!straight && target != nullptr) std::memcpy(target, bounce + lead, bytes);
    return {into + lead, bytes};
}

class Run {
  public:
    Run(const LayerSource& source, std::uint64_t segment_bytes, const PlaneTargets& targets, const ReadOptions& options)
        : layer_(*source.entry), segment_bytes_(segment_bytes), options_(options) {
        add(source.weight, targets.weights);
        add(source.scale, targets.scales);
    }

    void run() {
        const std::size_t count = std::clamp<std::size_t>(options_.threads, 1, std::max<std::size_t>(items_.size(), 1));
        {
            std::vector<std::jthread> workers;  // joined at the end of this block
            for (std::size_t i = 1; i < count; ++i) workers.emplace_back([this] { work(); });
            work();
        }
        if (error_) std::rethrow_exception(error_);
        if (options_.stop.stop_requested()) throw Cancelled("stopped before all rows were read");
    }

  private:
    void add(const PlaneSource& source, std::byte* target) {
        File file = options_.direct_io ? File::open_direct(source.path) : File::open(source.path);
        planes_.push_back({&source, std::move(file), target});
        for (std::size_t i = 0; i < source.entry->segments.size(); ++i) items_.push_back({planes_.size() - 1, i});
        total_ += source.entry->bytes;
    }

    void work() noexcept {
        std::size_t index = 0;
        try {
            const Bounce bounce = make_bounce();
            for (;;) {
                // Items are handed out in order and each one handed out is read to its end: when one fails, every
                // earlier one is read as well, and the lowest failure is the first mismatch of the table.
                if (failed_.load() || options_.stop.stop_requested()) return;
                index = next_.fetch_add(1);
                if (index >= items_.size()) return;
                read_item(items_[index], bounce.get());
            }
        } catch (...) {
            const std::scoped_lock lock(mutex_);
            failed_.store(true);
            if (index < failed_index_) {
                failed_index_ = index;
                error_ = std::current_exception();
            }
        }
    }

    void read_item(const Item& item, std::byte* bounce) {
        const Plane& plane = planes_[item.plane];
        const PlaneEntry& entry = *plane.source->entry;
        const std::uint64_t first = item.segment * segment_bytes_;
        const std::uint64_t last = std::min(entry.bytes, first + segment_bytes_);
        Sha256 hash;
        for (std::uint64_t at = first; at < last;) {
            if (options_.stop.stop_requested()) return;
            const auto bytes = static_cast<std::size_t>(std::min<std::uint64_t>(kPiece, last - at));
            std::byte* const target = plane.target == nullptr ? nullptr : plane.target + at;
            hash.update(read_piece(plane.file, entry.offset + at, bytes, target, bounce));
            at += bytes;
        }
        const Digest found = hash.finish();
        const Digest& wanted = entry.segments[item.segment];
        if (found != wanted) {
            throw VerifyError(
                fmt::format("layer {} {} segment {} of {} (plane bytes [{}, {})) in {} does not match the manifest: "
                            "expected sha256 "
                            "{}, found {}",
                            layer_.layer, plane_name(entry.kind), item.segment, entry.segments.size(), first, last,
                            plane.file.path(), to_hex(wanted), to_hex(found)));
        }
        const std::uint64_t done = done_.fetch_add(last - first) + (last - first);
        if (options_.progress) options_.progress(done, total_);
    }

    const LayerEntry& layer_;
    const std::uint64_t segment_bytes_;
    const ReadOptions& options_;
    std::vector<Plane> planes_;
    std::vector<Item> items_;
    std::uint64_t total_ = 0;
    std::atomic<std::size_t> next_{0};
    std::atomic<std::uint64_t> done_{0};
    std::atomic<bool> failed_{false};
    std::mutex mutex_;  // guards the two below
    std::size_t failed_index_ = std::numeric_limits<std::size_t>::max();
    std::exception_ptr error_;
};

}  // namespace

void read_and_verify(const LayerSource& source, std::uint64_t segment_bytes, const PlaneTargets& targets,
                     const ReadOptions& options) {
    Run(source, segment_bytes, targets, options).run();
}

}  // namespace engram
