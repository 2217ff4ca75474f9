// Reads typed values out of JSON; every complaint names the document and the key.
#pragma once

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "table/error.h"

namespace engram {

class JsonReader {
  public:
    JsonReader(const nlohmann::json& value, std::string document, std::string key = {})
        : value_(&value), document_(std::move(document)), key_(std::move(key)) {}

    [[noreturn]] void fail(const std::string& problem) const {
        throw ManifestError(document_ + ": " + (key_.empty() ? "the document" : key_) + ": " + problem);
    }

    [[nodiscard]] bool has(const std::string& name) const { return value_->is_object() && value_->contains(name); }

    [[nodiscard]] JsonReader at(const std::string& name) const {
        if (!value_->is_object()) fail("expected an object, found " + found());
        const auto it = value_->find(name);
        const std::string key = key_.empty() ? name : key_ + "." + name;
        if (it == value_->end()) throw ManifestError(document_ + ": " + key + ": missing");
        return JsonReader(*it, document_, key);
    }

    [[nodiscard]] std::size_t size() const {
        if (!value_->is_array()) fail("expected a list, found " + found());
        return value_->size();
    }

    [[nodiscard]] JsonReader at(std::size_t index) const {
        return JsonReader((*value_)[index], document_, key_ + "[" + std::to_string(index) + "]");
    }

    [[nodiscard]] bool is_null() const { return value_->is_null(); }

    [[nodiscard]] bool boolean() const {
        if (!value_->is_boolean()) fail("expected true or false, found " + found());
        return value_->get<bool>();
    }

    [[nodiscard]] std::string text() const {
        if (!value_->is_string()) fail("expected a string, found " + found());
        return value_->get<std::string>();
    }

    [[nodiscard]] std::uint64_t number(std::uint64_t most = std::numeric_limits<std::uint64_t>::max()) const {
        // A non-negative literal parses as unsigned; anything else is negative, a fraction or no number.
        if (!value_->is_number_unsigned()) fail("expected a non-negative integer, found " + found());
        const auto number = value_->get<std::uint64_t>();
        if (number > most) fail("expected at most " + std::to_string(most) + ", found " + found());
        return number;
    }

    [[nodiscard]] std::uint32_t number32() const {
        return static_cast<std::uint32_t>(number(std::numeric_limits<std::uint32_t>::max()));
    }

    [[nodiscard]] std::string found() const {
        std::string text = value_->dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
        if (text.size() > 60) text = text.substr(0, 57) + "...";
        return text;
    }

  private:
    const nlohmann::json* value_;  // owned by the caller's document, which outlives the reader
    std::string document_;
    std::string key_;
};

}  // namespace engram
