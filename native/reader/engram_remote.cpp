// The Python module of the reader. Needs pybind11 alone, which comes with torch's headers: nothing of libtorch.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "reader/remote_table.h"

namespace py = pybind11;

namespace {

using engram_remote::Options;
using engram_remote::RemoteTable;

// One plane of staging as a writable buffer [rows][width] of bytes; keeps its table alive.
struct StagingPlane {
    std::shared_ptr<RemoteTable> table;
    std::byte* data = nullptr;
    py::ssize_t width = 0;
};

struct Table {
    std::shared_ptr<RemoteTable> core;

    [[nodiscard]] StagingPlane weights() const { return {core, core->staging().weights, ofl::kWeightBytes}; }
    [[nodiscard]] StagingPlane scales() const { return {core, core->staging().scales, ofl::kScaleBytes}; }

    void enqueue(const py::buffer& ids) const {
        const py::buffer_info info = ids.request();
        if (info.ndim != 1 || (info.size > 1 && info.strides[0] != info.itemsize)) {
            throw std::invalid_argument("row ids must be one contiguous dimension");
        }
        const auto count = static_cast<std::size_t>(info.size);
        if (info.item_type_is_equivalent_to<std::int64_t>()) {
            core->enqueue(std::span(static_cast<const std::int64_t*>(info.ptr), count));
        } else if (info.item_type_is_equivalent_to<std::int32_t>()) {
            core->enqueue(std::span(static_cast<const std::int32_t*>(info.ptr), count));
        } else {
            throw py::type_error("row ids must be int32 or int64, not buffer format '" + info.format + "'");
        }
    }

    [[nodiscard]] py::dict stats() const {
        const engram_remote::Counters counters = core->stats();
        using namespace pybind11::literals;
        return py::dict("remote_lookups"_a = counters.remote_lookups, "rows"_a = counters.rows,
                        "bytes"_a = counters.bytes, "mean_us"_a = counters.mean_us, "p50_us"_a = counters.p50_us,
                        "max_us"_a = counters.max_us, "fallbacks"_a = counters.fallbacks,
                        "fallback_rows"_a = counters.fallback_rows, "transport_errors"_a = counters.transport_errors,
                        "refusals"_a = counters.refusals, "reconnects"_a = counters.reconnects,
                        "connected"_a = counters.connected, "mode"_a = core->mode());
    }
};

ofl::Identity identity_of(const py::bytes& bytes) {
    const std::string text = bytes;
    ofl::Identity identity{};
    if (text.size() != identity.size()) throw std::invalid_argument("an identity has 32 bytes");
    std::memcpy(identity.data(), text.data(), identity.size());
    return identity;
}

ofl::Endpoint endpoint_of(const std::string& url) {
    ofl::Endpoint endpoint;
    if (const ofl::Status status = ofl::parse_endpoint(url, endpoint); !status.ok()) {
        throw std::invalid_argument(status.reason);
    }
    return endpoint;
}

Table open(const std::string& url, std::uint32_t layer, std::uint32_t rank, std::uint64_t start, std::uint64_t end,
           std::uint64_t rows, const py::bytes& identity, std::uint32_t max_rows, const std::string& weight_path,
           std::uint64_t weight_offset, const std::string& scale_path, std::uint64_t scale_offset,
           std::int64_t timeout_ms, std::int64_t retry_ms, bool required, std::int64_t log_s, bool bounce,
           const py::bytes& key, unsigned read_threads, bool direct_io) {
    Options options{.endpoint = endpoint_of(url),
                    .layer = layer,
                    .rank = rank,
                    .start = start,
                    .end = end,
                    .identity = identity_of(identity),
                    .max_rows = max_rows,
                    .shard = {{weight_path, weight_offset}, {scale_path, scale_offset}, rows},
                    .timeout = engram_remote::milliseconds(timeout_ms),
                    .retry = engram_remote::milliseconds(retry_ms),
                    .required = required,
                    .log_every = engram_remote::seconds(log_s),
                    .bounce = bounce,
                    .key = key,
                    .read_threads = read_threads,
                    .direct_io = direct_io,
                    .log = {}};
    const py::gil_scoped_release release;  // attaching may take seconds
    return {std::make_shared<RemoteTable>(std::move(options))};
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
    module.doc() = "Engram rows from the table server. Use dsv41_engram_remote, not this module.";
    // Local to this module: another build of it may live in the same process.
    py::class_<StagingPlane>(module, "StagingPlane", py::buffer_protocol(), py::module_local())
        .def_buffer([](StagingPlane& plane) {
            const std::vector<py::ssize_t> shape{static_cast<py::ssize_t>(plane.table->max_rows()), plane.width};
            const std::vector<py::ssize_t> strides{plane.width, 1};
            return py::buffer_info(reinterpret_cast<std::uint8_t*>(plane.data), shape, strides);
        });
    py::class_<Table>(module, "Table", py::module_local())
        .def("enqueue", &Table::enqueue, py::arg("ids"))
        .def(
            "wait", [](const Table& table) { table.core->wait(); }, py::call_guard<py::gil_scoped_release>())
        .def(
            "close", [](const Table& table) { table.core->close(); }, py::call_guard<py::gil_scoped_release>())
        .def("stats", &Table::stats)
        .def_property_readonly("weights", &Table::weights)
        .def_property_readonly("scales", &Table::scales);
    module.def("open", &open, py::kw_only(), py::arg("url"), py::arg("layer"), py::arg("rank"), py::arg("start"),
               py::arg("end"), py::arg("rows"), py::arg("identity"), py::arg("max_rows"), py::arg("weight_path"),
               py::arg("weight_offset"), py::arg("scale_path"), py::arg("scale_offset"), py::arg("timeout_ms"),
               py::arg("retry_ms"), py::arg("required"), py::arg("log_s"), py::arg("bounce"), py::arg("key"),
               py::arg("read_threads"), py::arg("direct_io"));
}
