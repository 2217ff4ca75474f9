// A file opened for reading, with or without O_DIRECT; reads name the file when they fail.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

namespace engram {

// Alignment that O_DIRECT asks for: offset, length and memory. 4096 suits every device in use.
inline constexpr std::uint64_t kDirectAlign = 4096;

class File {
  public:
    // A file that does not exist is a VerifyError (the checkpoint is not what the manifest says).
    [[nodiscard]] static File open(const std::filesystem::path& path);
    // With O_DIRECT when the file system takes it; direct() tells.
    [[nodiscard]] static File open_direct(const std::filesystem::path& path);

    File(File&& other) noexcept;
    File& operator=(File&& other) noexcept;
    File(const File&) = delete;
    File& operator=(const File&) = delete;
    ~File();

    [[nodiscard]] std::uint64_t size() const;
    [[nodiscard]] bool direct() const noexcept { return direct_; }
    [[nodiscard]] const std::string& path() const noexcept { return path_; }

    // Fills the whole span; a file that ends before it is a VerifyError. Buffered files only.
    void read(std::uint64_t offset, std::span<std::byte> into) const;
    // One aligned read: returns at least `need` bytes of `into`, fewer than asked only at the end of the file.
    std::size_t read_aligned(std::uint64_t offset, std::span<std::byte> into, std::size_t need) const;

  private:
    File(int fd, bool direct, std::string path) noexcept : fd_(fd), direct_(direct), path_(std::move(path)) {}

    int fd_ = -1;
    bool direct_ = false;
    std::string path_;
};

}  // namespace engram
