// Collective operations of gloo over its ibverbs transport, among SIZE ranks. The bytes that each rank ends with are
// compared with those that they must be.
//
//     gloo DEVICE DIRECTORY RANK SIZE
//
// The ranks find each other by files in the directory.

#include <gloo/allgather_ring.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/allreduce_ring.h>
#include <gloo/allreduce_ring_chunked.h>
#include <gloo/barrier_all_to_all.h>
#include <gloo/broadcast_one_to_all.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/ibverbs/device.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <unistd.h>

namespace {

using Numbers = std::vector<uint64_t>;

uint64_t own(int rank, size_t i) {
    return (rank + 1) * 1000003ull + i * 7919ull;
}

// What a rank begins with. It is registered until the process ends.
Numbers &begin(int rank, size_t count) {
    Numbers &numbers = *new Numbers(count);
    for (size_t i = 0; i < count; i++)
        numbers[i] = own(rank, i);
    return numbers;
}

void check(const char *what, const Numbers &got, const std::function<uint64_t(size_t)> &must) {
    for (size_t i = 0; i < got.size(); i++) {
        if (got[i] == must(i))
            continue;
        fprintf(stderr, "%s of %zu: number %zu is wrong\n", what, got.size(), i);
        exit(1);
    }
}

// Keeps an algorithm to the end, and runs it. gloo aborts if a buffer ends while one of its sends has not completed,
// and does not wait for that itself.
void run(gloo::Algorithm *algorithm) {
    static std::vector<gloo::Algorithm *> all;
    all.push_back(algorithm);
    algorithm->run();
}

template <typename Algorithm>
void reduce(const char *what, const std::shared_ptr<gloo::Context> &context, size_t count) {
    Numbers &numbers = begin(context->rank, count);
    run(new Algorithm(context, {numbers.data()}, count));
    check(what, numbers, [&](size_t i) {
        uint64_t sum = 0;
        for (int rank = 0; rank < context->size; rank++)
            sum += own(rank, i);
        return sum;
    });
}

void broadcast(const std::shared_ptr<gloo::Context> &context, size_t count, int root) {
    Numbers &numbers = begin(context->rank, count);
    std::vector<uint64_t *> pointers{numbers.data()};
    run(new gloo::BroadcastOneToAll<uint64_t>(context, pointers, count, root));
    check("broadcast", numbers, [&](size_t i) { return own(root, i); });
}

void gather(const std::shared_ptr<gloo::Context> &context, size_t count) {
    Numbers &numbers = begin(context->rank, count), &all = *new Numbers(count * context->size);
    std::vector<const uint64_t *> pointers{numbers.data()};
    run(new gloo::AllgatherRing<uint64_t>(context, pointers, all.data(), count));
    check("allgather", all, [&](size_t i) { return own(i / count, i % count); });
}

} // namespace

int main(int argc, char **argv) {
    if (argc != 5)
        return 2;
    const int rank = atoi(argv[3]), size = atoi(argv[4]);
    gloo::rendezvous::FileStore store(argv[2]);
    gloo::transport::ibverbs::attr attr{argv[1], 1, 1};
    auto device = gloo::transport::ibverbs::CreateDevice(attr);
    auto context = std::make_shared<gloo::rendezvous::Context>(rank, size);
    context->connectFullMesh(store, device);
    for (size_t count : {1, 1000, 300001}) {
        reduce<gloo::AllreduceRing<uint64_t>>("ring", context, count);
        reduce<gloo::AllreduceRingChunked<uint64_t>>("chunked ring", context, count);
        reduce<gloo::AllreduceHalvingDoubling<uint64_t>>("halving", context, count);
        for (int root = 0; root < size; root++)
            broadcast(context, count, root);
        gather(context, count);
    }
    run(new gloo::BarrierAllToAll(context));
    printf("%d of %d: all numbers are right\n", rank, size);
    fflush(stdout);
    // A rank that passes the barrier has not waited for its own sends, and a packet that is lost after its end is not
    // sent again. So each waits until all have passed.
    std::vector<std::string> passed;
    for (int other = 0; other < size; other++)
        passed.push_back("passed " + std::to_string(other));
    store.set(passed[rank], {'1'});
    store.wait(passed);
    // Without the destructors.
    _exit(0);
}
