#include "table/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "table/error.h"

namespace engram {
namespace {

[[noreturn]] void fail(const std::string& path, const char* what, int error) {
    const std::string message = fmt::format("{}: {}: {}", path, what, std::strerror(error));
    if (error == ENOENT || error == ENOTDIR) throw VerifyError(message);
    throw ResourceError(message);
}

}  // namespace

File File::open(const std::filesystem::path& path) {
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) fail(path.string(), "cannot be opened", errno);
    return File(fd, false, path.string());
}

File File::open_direct(const std::filesystem::path& path) {
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT);
    if (fd < 0) return open(path);  // which reports what is wrong when it is not O_DIRECT
    File file(fd, true, path.string());
    // Some file systems accept the flag and refuse the read.
    alignas(kDirectAlign) std::byte probe[kDirectAlign];
    if (::pread(fd, probe, sizeof probe, 0) < 0 && errno == EINVAL) return open(path);
    return file;
}

File::File(File&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), direct_(other.direct_), path_(std::move(other.path_)) {}

File& File::operator=(File&& other) noexcept {
    std::swap(fd_, other.fd_);
    std::swap(direct_, other.direct_);
    std::swap(path_, other.path_);
    return *this;
}

File::~File() {
    if (fd_ >= 0) ::close(fd_);
}

std::uint64_t File::size() const {
    struct stat info{};
    if (::fstat(fd_, &info) != 0) fail(path_, "cannot be examined", errno);
    if (!S_ISREG(info.st_mode)) throw VerifyError(fmt::format("{}: not a regular file", path_));
    return static_cast<std::uint64_t>(info.st_size);
}

void File::read(std::uint64_t offset, std::span<std::byte> into) const {
    std::size_t done = 0;
    while (done < into.size()) {
        const ssize_t n = ::pread(fd_, into.data() + done, into.size() - done, static_cast<off_t>(offset + done));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) fail(path_, "read failed", errno);
        if (n == 0) {
            throw VerifyError(
                fmt::format("{}: truncated: expected {} bytes at {}, found {}", path_, into.size(), offset, done));
        }
        done += static_cast<std::size_t>(n);
    }
}

std::size_t File::read_aligned(std::uint64_t offset, std::span<std::byte> into, std::size_t need) const {
    std::size_t done = 0;
    while (done < need) {
        const ssize_t n = ::pread(fd_, into.data() + done, into.size() - done, static_cast<off_t>(offset + done));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) fail(path_, "read failed", errno);
        done += static_cast<std::size_t>(n);
        // A short direct read that stops off the alignment is the end of the file.
        if (n == 0 || done % kDirectAlign != 0) break;
    }
    if (done < need) {
        throw VerifyError(fmt::format("{}: truncated: expected {} bytes at {}, found {}", path_, need, offset, done));
    }
    return done;
}

}  // namespace engram
