#include "reader/local_shard.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <numeric>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "reader/page_buffer.h"
#include "reader/read_pool.h"

namespace engram_remote {
namespace {

constexpr std::uint64_t kBlock = 4096;          // what O_DIRECT is aligned to; no NVMe in use asks for more
constexpr std::uint64_t kMostBytes = 64 << 10;  // of one pread: neighbours are read together up to this
constexpr std::uint64_t kGap = 2 * kBlock;      // and across this many bytes that nobody asked for
constexpr std::size_t kAlone = 8;               // fewer reads than this are not worth waking a thread for

constexpr std::uint64_t floor_block(std::uint64_t at) {
    return at / kBlock * kBlock;
}
constexpr std::uint64_t ceil_block(std::uint64_t at) {
    return floor_block(at + kBlock - 1);
}

std::string errno_text(int error) {
    return std::generic_category().message(error);
}

class File {
  public:
    File() = default;
    File(const std::string& path, int flags) : fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | flags)) {}
    ~File() {
        if (fd_ >= 0) ::close(fd_);
    }
    File(File&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
    File& operator=(File&& other) noexcept {
        std::swap(fd_, other.fd_);
        return *this;
    }
    [[nodiscard]] int fd() const noexcept { return fd_; }

  private:
    int fd_ = -1;
};

struct Plane {
    std::string path;
    std::uint64_t offset = 0;
    std::uint32_t width = 0;
    File file;
    std::string refused;  // why O_DIRECT is not used; empty: it is, or nobody asked
};

// Whether the file system takes O_DIRECT reads shows only when one is made.
std::string try_direct(Plane& plane) {
    File direct(plane.path, O_DIRECT);
    if (direct.fd() < 0) return errno_text(errno);
    const PageBuffer probe(kBlock);
    if (::pread(direct.fd(), probe.data(), kBlock, static_cast<off_t>(floor_block(plane.offset))) < 0) {
        return errno_text(errno);
    }
    plane.file = std::move(direct);
    return {};
}

Plane open_plane(const PlaneFile& where, std::uint32_t width, std::uint64_t rows, bool direct) {
    Plane plane{where.path, where.offset, width, File(where.path, 0), {}};
    struct stat info{};
    if (plane.file.fd() < 0 || ::fstat(plane.file.fd(), &info) != 0) {
        throw std::runtime_error(where.path + ": " + errno_text(errno));
    }
    const std::uint64_t end = where.offset + rows * width;
    if (static_cast<std::uint64_t>(info.st_size) < end) {
        throw std::runtime_error(where.path + ": " + std::to_string(info.st_size) + " bytes, the plane ends at " +
                                 std::to_string(end));
    }
    if (direct) plane.refused = try_direct(plane);
    return plane;
}

// Rows order[first, last) of one plane, read in one go.
struct Extent {
    const Plane* plane = nullptr;
    std::size_t first = 0;
    std::size_t last = 0;
};

}  // namespace

struct LocalShard::Impl {
    Impl(const ShardFiles& files, unsigned threads, bool direct)
        : planes{open_plane(files.weight, ofl::kWeightBytes, files.rows, direct),
                 open_plane(files.scale, ofl::kScaleBytes, files.rows, direct)},
          rows(files.rows),
          pool(std::max(1U, threads), kMostBytes + 2 * kBlock) {
        mode = direct ? "O_DIRECT" : "buffered";
        for (const Plane& plane : planes) {
            if (!plane.refused.empty()) {
                mode = "buffered (O_DIRECT refused by " + plane.path + ": " + plane.refused + ")";
            }
        }
    }

    void plan(const Plane& plane, std::span<const std::uint32_t> ids) {
        for (std::size_t first = 0; first < order.size();) {
            const std::uint64_t begin = floor_block(place(plane, ids[order[first]]));
            std::uint64_t end = place(plane, ids[order[first]]) + plane.width;
            std::size_t last = first + 1;
            for (; last < order.size(); ++last) {
                const std::uint64_t next = place(plane, ids[order[last]]);
                if (next > end + kGap || next + plane.width > begin + kMostBytes) break;
                end = next + plane.width;
            }
            extents.push_back({&plane, first, last});
            first = last;
        }
    }

    void read(const Extent& extent, std::span<const std::uint32_t> ids, std::byte* to, std::byte* buffer) const {
        const Plane& plane = *extent.plane;
        const std::uint64_t begin = floor_block(place(plane, ids[order[extent.first]]));
        const std::uint64_t needed = place(plane, ids[order[extent.last - 1]]) + plane.width - begin;
        const std::uint64_t whole = ceil_block(needed);
        std::uint64_t got = 0;
        // A read may end early at the end of the file only, where fewer than a whole block remain.
        while (got < needed) {
            const ssize_t bytes = ::pread(plane.file.fd(), buffer + got, whole - got, static_cast<off_t>(begin + got));
            if (bytes < 0 && errno == EINTR) continue;
            if (bytes < 0) throw std::runtime_error(plane.path + ": " + errno_text(errno));
            if (bytes == 0) {
                throw std::runtime_error(plane.path + ": ends at byte " + std::to_string(begin + got) +
                                         ", inside the table");
            }
            got += static_cast<std::uint64_t>(bytes);
            // O_DIRECT goes on at a block; bytes of a partial one are read again.
            if (got < needed) got = floor_block(got);
        }
        for (std::size_t i = extent.first; i < extent.last; ++i) {
            std::memcpy(to + std::size_t{order[i]} * plane.width, buffer + (place(plane, ids[order[i]]) - begin),
                        plane.width);
        }
    }

    static std::uint64_t place(const Plane& plane, std::uint32_t id) {
        return plane.offset + std::uint64_t{id} * plane.width;
    }

    std::array<Plane, 2> planes;
    std::uint64_t rows;
    std::string mode;
    std::vector<std::uint32_t> order;  // places, sorted by row id
    std::vector<Extent> extents;
    ReadPool pool;
};

LocalShard::LocalShard(const ShardFiles& files, unsigned threads, bool direct)
    : impl_(std::make_unique<Impl>(files, threads, direct)) {}
LocalShard::~LocalShard() = default;

const std::string& LocalShard::mode() const noexcept {
    return impl_->mode;
}

void LocalShard::read(std::span<const std::uint32_t> ids, RowPlanes out) {
    Impl& impl = *impl_;
    for (const std::uint32_t id : ids) {
        if (id >= impl.rows) throw std::runtime_error("row id " + std::to_string(id) + " is beyond the local shard");
    }
    impl.order.resize(ids.size());
    std::iota(impl.order.begin(), impl.order.end(), 0U);
    std::sort(impl.order.begin(), impl.order.end(),
              [&](std::uint32_t left, std::uint32_t right) { return ids[left] < ids[right]; });
    impl.extents.clear();
    for (const Plane& plane : impl.planes) impl.plan(plane, ids);
    impl.pool.run(impl.extents.size(), impl.extents.size() < kAlone, [&](std::size_t job, std::byte* buffer) {
        const Extent& extent = impl.extents[job];
        impl.read(extent, ids, extent.plane == impl.planes.data() ? out.weights : out.scales, buffer);
    });
}

}  // namespace engram_remote
