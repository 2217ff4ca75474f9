#include <doctest/doctest.h>

#include <random>

#include "table/error.h"
#include "table/packed.h"
#include "table/safetensors.h"
#include "tests/table_fixture.h"

namespace {

using engram::parse_safetensors;
using engram::VerifyError;
using nlohmann::json;

std::string complaint(const std::string& header, std::uint64_t file_bytes) {
    try {
        static_cast<void>(parse_safetensors(header, file_bytes, "s.safetensors"));
    } catch (const VerifyError& error) {
        return error.what();
    }
    return "accepted";
}

std::string one_tensor(const std::string& fields) {
    return R"({"t":{)" + fields + "}}";
}

json good_header() {
    return {{"__metadata__", {{"format", "pt"}}},
            {"t", {{"dtype", "F8_E4M3"}, {"shape", {4, 256}}, {"data_offsets", {0, 1024}}}},
            {"s", {{"dtype", "F8_E8M0"}, {"shape", {4, 8}}, {"data_offsets", {1024, 1056}}}}};
}

}  // namespace

TEST_CASE("safetensors: offsets are absolute, metadata is no tensor") {
    const std::string text = good_header().dump();
    const auto header = parse_safetensors(text, 8 + text.size() + 1056, "s.safetensors");
    CHECK(header.tensors.size() == 2);
    const auto& tensor = header.require("s", "F8_E8M0", {4, 8});
    CHECK(tensor.offset == 8 + text.size() + 1024);
    CHECK(tensor.bytes == 32);
}

TEST_CASE("safetensors: what is wanted and what is found are both named") {
    const std::string text = good_header().dump();
    const auto header = parse_safetensors(text, 8 + text.size() + 1056, "s.safetensors");
    CHECK_THROWS_WITH_AS(static_cast<void>(header.require("u", "F8_E4M3", {4, 256})),
                         "s.safetensors: tensor u: missing (2 other tensors)", VerifyError);
    CHECK_THROWS_WITH_AS(static_cast<void>(header.require("t", "BF16", {4, 256})),
                         "s.safetensors: tensor t: dtype: expected BF16, found F8_E4M3", VerifyError);
    CHECK_THROWS_WITH_AS(static_cast<void>(header.require("t", "F8_E4M3", {5, 256})),
                         "s.safetensors: tensor t: shape: expected [5, 256], found [4, 256]", VerifyError);
}

TEST_CASE("safetensors: malformed headers are one-line errors") {
    const std::uint64_t big = 1'000'000;
    CHECK(complaint("[]", big) == "s.safetensors: its header is no JSON object");
    CHECK(complaint("{", big).find("s.safetensors: its header is not valid JSON") == 0);
    CHECK(complaint("{}", 5) == "s.safetensors: truncated inside its header");
    CHECK(complaint(R"({"t":5})", big) == "s.safetensors: tensor t: expected an object, found 5");
    CHECK(complaint(one_tensor(R"("shape":[1],"data_offsets":[0,1])"), big) ==
          "s.safetensors: tensor t.dtype: missing");
    CHECK(complaint(one_tensor(R"("dtype":"U8","shape":[-1],"data_offsets":[0,1])"), big) ==
          "s.safetensors: tensor t.shape[0]: expected a non-negative integer, found -1");
    CHECK(complaint(one_tensor(R"("dtype":"U8","shape":[1],"data_offsets":[0])"), big) ==
          "s.safetensors: tensor t.data_offsets: expected two offsets, found [0]");
    CHECK(complaint(one_tensor(R"("dtype":"U8","shape":[1],"data_offsets":[2,1])"), big) ==
          "s.safetensors: tensor t.data_offsets: reversed: [2,1]");
    CHECK(complaint(one_tensor(R"("dtype":"F16","shape":[3],"data_offsets":[0,5])"), big) ==
          "s.safetensors: tensor t: F16 [3] needs 6 bytes, data_offsets give 5");
    // 2^63 * 4 overflows; it must not come out as a small number.
    CHECK(complaint(one_tensor(R"("dtype":"F32","shape":[9223372036854775808],"data_offsets":[0,0])"), big) ==
          "s.safetensors: tensor t: F32 [9223372036854775808] needs too many bytes, data_offsets give 0");
    const std::string cut = one_tensor(R"("dtype":"U8","shape":[100],"data_offsets":[0,100])");
    CHECK(complaint(cut, 8 + cut.size() + 99) ==
          "s.safetensors: tensor t.data_offsets: truncated: the data should reach byte 100, the file ends after 99");
    CHECK(complaint(cut, 8 + cut.size() + 100) == "accepted");
}

TEST_CASE("safetensors: a dtype of the future in another tensor is no obstacle") {
    const std::string text = one_tensor(R"("dtype":"F3_X","shape":[100],"data_offsets":[0,7])");
    CHECK(complaint(text, 1000) == "accepted");
}

TEST_CASE("safetensors: lengths that lie") {
    const fixture::TempDir dir;
    const auto path = dir.path() / "x.safetensors";
    const auto refuse = [&](const std::string& bytes, const std::string& wanted) {
        fixture::write_file(path, bytes);
        try {
            static_cast<void>(engram::read_safetensors(path));
            FAIL_CHECK("accepted");
        } catch (const VerifyError& error) {
            CHECK(std::string(error.what()).find(wanted) != std::string::npos);
            CHECK(std::string(error.what()).find(path.string()) == 0);
        }
    };
    refuse("", "truncated: 0 bytes");
    refuse("1234567", "truncated: 7 bytes");
    refuse(std::string(8, '\xff'), "header length 18446744073709551615, expected at most 100000000");
    refuse(std::string("\x10\0\0\0\0\0\0\0{}", 10), "truncated inside its header: expected 16 bytes, found 2");
    CHECK_THROWS_AS(static_cast<void>(engram::read_safetensors(dir.path() / "none")), VerifyError);
    CHECK_THROWS_AS(static_cast<void>(engram::read_safetensors(dir.path())), VerifyError);
}

TEST_CASE("safetensors: random damage either parses within the file or is refused") {
    const std::string good = good_header().dump();
    const std::uint64_t file_bytes = 8 + good.size() + 1056;
    std::mt19937_64 random(20261201);
    static constexpr char kAlphabet[] = "0123456789{}[]\",:-eE.tsF\\u\xff\x01 ";
    std::size_t refused = 0;
    for (int round = 0; round < 20000; ++round) {
        std::string text = good;
        const auto edits = 1 + random() % 4;
        for (std::uint64_t i = 0; i < edits; ++i) {
            const std::size_t at = random() % text.size();
            const char c = kAlphabet[random() % (sizeof kAlphabet - 1)];
            switch (random() % 3) {
                case 0:
                    text[at] = c;
                    break;
                case 1:
                    text.insert(at, 1, c);
                    break;
                default:
                    text.erase(at, 1 + random() % 5);
                    break;
            }
            if (text.empty()) text = "{";
        }
        try {
            const auto header = parse_safetensors(text, file_bytes, "s.safetensors");
            for (const auto& [name, tensor] : header.tensors) {
                REQUIRE(tensor.offset >= 8 + text.size());
                REQUIRE(tensor.offset <= file_bytes);
                REQUIRE(tensor.bytes <= file_bytes - tensor.offset);
            }
        } catch (const VerifyError&) {
            ++refused;
        }
    }
    CHECK(refused > 10000);
}

TEST_CASE("packed: headers that lie are refused") {
    fixture::Checkpoint checkpoint;
    checkpoint.pack();
    const auto path = checkpoint.dir() / "layer-1.dsv41pack";
    const std::string good = fixture::read_file(path);
    CHECK(engram::read_packed(path).rows == checkpoint.layer(1).rows);
    const auto refuse = [&](const std::string& bytes, const std::string& wanted) {
        fixture::write_file(path, bytes);
        try {
            static_cast<void>(engram::read_packed(path));
            FAIL_CHECK("accepted");
        } catch (const VerifyError& error) {
            CHECK(std::string(error.what()).find(wanted) != std::string::npos);
        }
    };
    const auto with_header = [&](const std::string& json_text) {
        std::string bytes = engram::kPackedMagic + json_text;
        bytes.resize(4096, '\0');
        return bytes + good.substr(4096);
    };
    const std::string hex(64, 'a');
    refuse("short", "truncated: 5 bytes");
    refuse("X" + good.substr(1), "no packed file: expected the magic DSV41PK1");
    refuse(with_header("{"), "not valid JSON");
    refuse(with_header(std::string(4088, ' ')), "not valid JSON");
    refuse(with_header(R"({"layer":1,"rows":4294967297,"weight_offset":4096,"scale_offset":8192,"identity":")" + hex +
                       "\"}"),
           "rows: expected at most 4294967296");
    refuse(with_header(R"({"layer":1,"rows":4,"weight_offset":4097,"scale_offset":8192,"identity":")" + hex + "\"}"),
           "weight_offset: expected a multiple of 4096 past the header, found 4097");
    refuse(with_header(R"({"layer":1,"rows":4,"weight_offset":4096,"scale_offset":0,"identity":")" + hex + "\"}"),
           "scale_offset: expected a multiple of 4096 past the header, found 0");
    refuse(
        with_header(R"({"layer":1,"rows":4000000,"weight_offset":4096,"scale_offset":8192,"identity":")" + hex + "\"}"),
        "truncated: weight_offset 4096");
    refuse(with_header(R"({"layer":1,"rows":4,"weight_offset":4096,"scale_offset":18446744073709547520,"identity":")" +
                       hex + "\"}"),
           "truncated: scale_offset");
    refuse(with_header(R"({"layer":1,"rows":4,"weight_offset":4096,"scale_offset":8192,"identity":"zz"})"),
           "identity: expected 64 lower-case hex digits");
    refuse(good.substr(0, good.size() - 1), "truncated: scale_offset");
}
