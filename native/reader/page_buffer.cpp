#include "reader/page_buffer.h"

#include <sys/mman.h>

#include <new>

namespace engram_remote {

PageBuffer::PageBuffer(std::size_t bytes) {
    if (bytes == 0) return;
    void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    data_ = static_cast<std::byte*>(memory);
    bytes_ = bytes;
}

PageBuffer::~PageBuffer() {
    if (data_ != nullptr) ::munmap(data_, bytes_);
}

}  // namespace engram_remote
