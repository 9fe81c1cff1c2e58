"""The two sides without sockets: messages are lost, connections reset and servers replaced as a seed decides."""

import random
import threading
from collections import Counter, deque

import pytest
from tests.cases import for_each
from tests.random_examples import seeds
from tests.runtime.process_helpers import await_true
from tests.service.served import locally, pipeline, stream

from penstock.memory.network import decode
from penstock.memory.scan import DOOR
from penstock.service import protocol
from penstock.service.broker import Broker
from penstock.service.flows import Flows
from penstock.service.lane import Lane, Plan
from penstock.service.ledger import Ledger
from penstock.service.split import SplitBroker
from penstock.service.split_lane import be_split

#: more steps than any run takes that does not go round in circles
MOST_STEPS = 50_000


class Network:
    """A server and some clients, and what is under way between them."""

    def __init__(self, seed, mode, served, count):
        self.draw = random.Random(seed)
        self.loss = self.draw.choice([0.0, 0.05, 0.2])
        self.mode, self.count = mode, count
        self.flows = Flows(served, 0, b"secret")
        self.ledger = Ledger(None, self.flows.fingerprint)
        self.credit = self.draw.randrange(1, 6)
        self.up, self.down = deque(), {}
        self.now = 0.0
        self.woken = threading.Event()
        self.faults_left = self.draw.randrange(8)
        self.broker = self.new_broker()
        self.lanes = [Lane(self.plan_of(number), "", 0.0) for number in range(count)]
        self.names = [f"{number}.0".encode() for number in range(count)]
        self.found = [[] for _ in range(count)]
        for number, lane in enumerate(self.lanes):
            self.say(number, lane.begin(self.now))

    def new_broker(self):
        if self.mode == "split":
            return SplitBroker(self.flows, self.ledger, self.credit, self.send, self.woken.set)
        return Broker(self.flows, self.mode, self.credit, self.send, self.woken.set)

    def plan_of(self, number):
        def plan(welcome):
            if welcome.mode == "split":
                be_split(self.lanes[number])
                return Plan(0)
            return Plan(0, 0, 1) if welcome.mode == "each" else Plan(0, number, self.count)

        return plan

    def send(self, identity, frames):
        if self.draw.random() >= self.loss:
            self.down.setdefault(identity, deque()).append([memoryview(bytes(frame)) for frame in frames])

    def say(self, number, messages):
        for message in messages:
            if self.draw.random() >= self.loss:
                self.up.append((self.names[number], [protocol.encode(message)]))

    # ------------------------------------------------------------------ what may happen

    def step(self):
        number = self.draw.randrange(self.count)
        lane = self.lanes[number]
        what = self.draw.random()
        idle = not self.up and not any(self.down.values()) and not any(one.available for one in self.lanes)
        if self.woken.wait(0.002 if idle else 0):  # nothing is under way but in the threads of the runs
            self.woken.clear()
            self.broker.made()
        if what < 0.4:
            if self.up:
                self.broker.received(*self.up.popleft())
        elif what < 0.8:
            waiting = self.down.get(self.names[number])
            if waiting:
                self.say(number, lane.hear(waiting.popleft(), self.now))
        elif what < 0.95:
            if lane.available:
                arrived = lane.take()
                self.found[number].append(decode(arrived.frames[0], arrived.frames[1:], DOOR)["i"].tolist())
            if lane.owes_credit:
                self.say(number, lane.want(self.now))
        else:
            self.now += 0.3
            self.say(number, lane.tick(self.now))
            if self.faults_left and self.draw.random() < 0.1:
                self.faults_left -= 1
                self.fault(number, lane)

    def fault(self, number, lane):
        """A connection that is made anew, a session that the server gives up, or a server that is started again."""
        fault = self.draw.randrange(3)
        if fault == 0:
            self.down.pop(self.names[number], None)
            self.names[number] += b"."
            self.say(number, lane.begin(self.now))
        elif fault == 1 and lane.token in self.broker.sessions:
            self.broker.leave(self.broker.sessions[lane.token])
        elif fault == 2:
            self.broker.ledger = Ledger(None, "")  # it is not closed with the old one
            self.broker.close()
            await_true(lambda: all(run.join(0) for run in self.broker.ended), "ends of runs")
            self.up.clear()
            self.down.clear()
            self.broker = self.new_broker()

    def run(self):
        for _ in range(MOST_STEPS):
            if all(lane.over and not lane.inbox for lane in self.lanes):
                break
            self.step()
        else:
            raise AssertionError("it goes round in circles")
        self.broker.close()
        await_true(lambda: all(run.join(0) for run in self.broker.ended), "ends of runs")
        self.flows.close()
        assert [lane.error for lane in self.lanes] == [None] * self.count
        return self.found


def check(seed):
    draw = random.Random(seed)
    mode = draw.choice(["shard", "each", "split"])
    made = draw.choice([pipeline, stream])
    count = draw.randrange(1, 4)
    whole = locally(made(60))[0]
    found = Network(seed, mode, made(60), count).run()
    if mode == "shard":
        assert found == [whole[number::count] for number in range(count)]
    elif mode == "each":
        assert found == [whole] * count
    else:
        assert Counter(str(batch) for part in found for batch in part) == Counter(map(str, whole))


@pytest.mark.fuzz
@for_each("seed", seeds(10))
def test_no_batch_is_lost_or_doubled_whatever_is_lost_on_the_way(seed):
    check(seed)


def test_what_belongs_to_an_earlier_turn_is_dropped():
    lane = Lane(lambda welcome: Plan(0), "", 0.0)
    lane.begin(0.0)
    welcome = protocol.Welcome(lane.token, 1, "shard", "abc", 3)
    (hello,) = lane.hear([memoryview(protocol.encode(welcome))], 0.0)
    assert (hello.first, hello.step) == (0, 1)
    lane.hear([memoryview(protocol.encode(protocol.Ready(lane.token, 1)))], 0.0)
    batch = [memoryview(protocol.encode(protocol.Batch(lane.token, 1, 0, 0))), memoryview(b"x")]
    lane.begin(0.1)
    assert lane.hear(batch, 0.2) == []
    assert not lane.inbox


def test_credit_is_what_the_inbox_has_room_for():
    lane = Lane(lambda welcome: Plan(0), "", 0.0)
    lane.begin(0.0)
    lane.hear([memoryview(protocol.encode(protocol.Welcome(lane.token, 1, "shard", "abc", 3)))], 0.0)
    (want,) = lane.hear([memoryview(protocol.encode(protocol.Ready(lane.token, 1)))], 0.0)
    assert (want.acknowledged, want.batches) == (0, 3)
    for seq in range(3):
        frames = [protocol.encode(protocol.Batch(lane.token, 1, seq, seq)), b"x"]
        lane.hear([memoryview(frame) for frame in frames], 0.0)
    (want,) = lane.want(0.0)
    assert (want.acknowledged, want.batches) == (3, 3)
    assert not lane.owes_credit
    lane.take()
    assert lane.owes_credit
    (want,) = lane.want(0.0)
    assert want.batches == 4


def test_a_server_that_takes_longer_than_a_turn_to_answer_is_reached():
    """Every answer takes three seconds, and a client that hears nothing begins a new turn after half a second."""
    flows = Flows(pipeline(6), 0, b"secret")
    answers: deque = deque()
    now = 0.0
    broker = Broker(
        flows, "each", 2, lambda to, frames: answers.append((now + 3.0, list(map(bytes, frames)))), bool
    )
    lane = Lane(lambda welcome: Plan(0), "", now)
    asked = lane.begin(now)
    turns = 0
    while not lane.available and turns < 40:
        for message in asked:
            broker.received(b"client", [protocol.encode(message)])
        await_true(lambda: broker.made() or not broker.sessions or answers, "an answer")
        now += 0.25
        asked = []
        while answers and answers[0][0] <= now:
            asked += lane.hear(list(map(memoryview, answers.popleft()[1])), now)
        before = lane.turn
        asked += lane.tick(now)
        turns += lane.turn - before
    broker.close()
    await_true(lambda: all(run.join(0) for run in broker.ended), "ends of runs")
    flows.close()
    assert lane.available
    assert turns < 40
