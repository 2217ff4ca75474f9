// The faults that the fault build injects do what their names say.
#include <doctest/doctest.h>

#include "transport_fixture.h"

using namespace transport_test;

#ifdef OFL_FAULTS

TEST_CASE("fault: delay-ms holds back every answer to a lookup") {
    Running running({.faults = {.delay_ms = 120}});
    Planes planes(10);
    const auto channel = running.channel(planes, 10);
    const auto before = Clock::now();
    CHECK(channel->lookup(1, some_ids(10), in(milliseconds(5000))).ok());
    CHECK(Clock::now() - before >= milliseconds(120));
    CHECK(channel->lookup(2, some_ids(10), in(milliseconds(20))).code == Code::kTimeout);
}

TEST_CASE("fault: half-frame cuts one answer and its connection") {
    Running running({.faults = {.half_frame = 2}});
    Planes planes(300);
    const auto channel = running.channel(planes, 300);
    CHECK(channel->lookup(1, some_ids(288), in(milliseconds(5000))).ok());
    CHECK(channel->lookup(2, some_ids(288), in(milliseconds(5000))).code == Code::kDisconnected);
    const auto again = running.channel(planes, 300);
    CHECK(again->lookup(3, some_ids(288), in(milliseconds(5000))).ok());
    CHECK(planes.holds(some_ids(288)));
}

TEST_CASE("fault: garbage is one answer that is none") {
    Running running({.faults = {.garbage = 1}});
    Planes planes(300);
    const auto channel = running.channel(planes, 300);
    CHECK(channel->lookup(1, some_ids(288), in(milliseconds(5000))).code == Code::kProtocol);
    CHECK(planes.untouched());
    CHECK(running.channel(planes, 300)->lookup(2, some_ids(288), in(milliseconds(5000))).ok());
}

TEST_CASE("fault: drop-open closes the connection of one OPEN") {
    Running running({.faults = {.drop_open = 2}});
    Planes planes(10);
    const auto first = running.channel(planes, 10);
    std::unique_ptr<ofl::Channel> second;
    CHECK(running.connect(request_for(10), planes, second).code == Code::kDisconnected);
    CHECK(running.channel(planes, 10)->lookup(1, some_ids(10), in(milliseconds(5000))).ok());
}

#endif
