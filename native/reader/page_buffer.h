// Page-aligned anonymous memory: staging that a device can register later, and O_DIRECT's read buffers.
#pragma once

#include <cstddef>
#include <utility>

namespace engram_remote {

class PageBuffer {
  public:
    PageBuffer() = default;
    explicit PageBuffer(std::size_t bytes);  // zeroed and touched; throws std::bad_alloc
    ~PageBuffer();
    PageBuffer(PageBuffer&& other) noexcept
        : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
    PageBuffer& operator=(PageBuffer&& other) noexcept {
        std::swap(data_, other.data_);
        std::swap(bytes_, other.bytes_);
        return *this;
    }

    [[nodiscard]] std::byte* data() const noexcept { return data_; }
    [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }

  private:
    std::byte* data_ = nullptr;
    std::size_t bytes_ = 0;
};

}  // namespace engram_remote
