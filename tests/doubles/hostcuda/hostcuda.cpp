/* The machine behind hostcuda.h: fibers, the queue, memory. */
#include "tests/doubles/hostcuda/hostcuda.h"

#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <sys/mman.h>
#include <thread>
#include <ucontext.h>
#include <unistd.h>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

namespace hostcuda
{
[[noreturn]] static void misuse(const char *what, const char *name)
{
    fprintf(stderr, "hostcuda: %s%s%s\n", what, name ? ": " : "", name ? name : "");
    abort();
}

static const char *running; /* the kernel */

void misuse(const char *what)
{
    misuse(what, running);
}

/* ---- fibers: one stack each, switched by hand (swapcontext() makes a system call) ---- */
enum { STACK_BYTES = 64 << 10, THREADS_MAX = 1024, SHARED_MAX = 227 << 10, WARP = 32, SHARE = 32 };

struct Copy {
    char *to;
    const void *from;
    unsigned bytes, group;
};

struct Fiber {
    Thread t;
    std::vector<Copy> copies; /* not yet made, groups ascend */
    unsigned group;           /* that the next one is of */
    void *sp;
    ucontext_t context;
    char *stack;
    bool done;
};

#if defined(__x86_64__)
extern "C" void hostcuda_switch(void **save, void *to);
__asm__(".text\n.globl hostcuda_switch\n.type hostcuda_switch,@function\nhostcuda_switch:\n"
        "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
        "mov %rsp,(%rdi)\nmov %rsi,%rsp\n"
        "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n"
        ".size hostcuda_switch,.-hostcuda_switch\n");
#endif

struct Warp {
    uint64_t word[2][WARP];
    alignas(8) char wide[2][WARP * SHARE];
    unsigned arrived, generation, phase[WARP], live;
};
struct Barrier {
    unsigned arrived, generation;
};

static std::vector<Fiber> fibers;
static struct Stacks { /* theirs, when the library is unloaded */
    ~Stacks()
    {
        for (Fiber &f : fibers)
            free(f.stack);
    }
} stacks;
static std::vector<size_t> after; /* whose turn is next, by whose it is */
static std::vector<Warp> warps;
static Barrier barrier;
static Fiber home; /* the scheduler's own place */
static size_t n_fibers, n_live, at, idle;
static const std::function<void()> *body;
alignas(128) static char shared[SHARED_MAX];

const Thread *current;
dim3 block_index, block_size, grid_size;

static void enter();

#if defined(__SANITIZE_ADDRESS__)
static const void *home_stack; /* where the scheduler runs, known once a thread has left it */
static size_t home_bytes;
static bool from_home;

static void leave_stack(Fiber &from, Fiber &to, void **fake)
{
    from_home = &from == &home;
    const bool back = &to == &home;
    __sanitizer_start_switch_fiber(from.done ? nullptr : fake, back ? home_stack : to.stack,
                                   back ? home_bytes : size_t(STACK_BYTES));
}

static void arrive_stack(void *fake)
{
    const void *bottom;
    size_t bytes;
    __sanitizer_finish_switch_fiber(fake, &bottom, &bytes);
    if (from_home) home_stack = bottom, home_bytes = bytes;
}
#else
static void leave_stack(Fiber &, Fiber &, void **)
{
}

static void arrive_stack(void *)
{
}
#endif

static void switch_fiber(Fiber &from, Fiber &to)
{
    void *fake = nullptr;
    current = &to.t;
    leave_stack(from, to, &fake);
#if defined(__x86_64__)
    hostcuda_switch(&from.sp, to.sp);
#else
    swapcontext(&from.context, &to.context);
#endif
    arrive_stack(fake);
}

static void start(Fiber &f)
{
    if (!f.stack) f.stack = static_cast<char *>(malloc(STACK_BYTES));
    if (!f.stack) misuse("no memory for a thread's stack", running);
    f.done = false;
    f.copies.clear();
    f.group = 0;
#if defined(__x86_64__)
    /* Not all stacks at one distance: their ends would share few sets of the cache. */
    const size_t stagger = (f.t.lane + 5 * f.t.warp) % 61 * 64;
    void **sp = reinterpret_cast<void **>(
        (reinterpret_cast<uintptr_t>(f.stack) + STACK_BYTES - stagger) & ~uintptr_t(63));
    *--sp = nullptr; /* where enter() would return to: never */
    *--sp = reinterpret_cast<void *>(&enter);
    for (int i = 0; i < 6; i++)
        *--sp = nullptr;
    f.sp = sp;
#else
    getcontext(&f.context);
    f.context.uc_stack.ss_sp = f.stack;
    f.context.uc_stack.ss_size = STACK_BYTES;
    f.context.uc_link = nullptr;
    makecontext(&f.context, enter, 0);
#endif
}

/* The next thread of the block that lives; the scheduler when none does. */
static Fiber &next_fiber()
{
    if (n_live == 0) return home;
    do
        at = after[at];
    while (fibers[at].done);
    return fibers[at];
}

static void enter()
{
    arrive_stack(nullptr);
    (*body)();
    Fiber &me = fibers[at];
    if (!me.copies.empty()) misuse("a thread leaves before its copies have arrived", running);
    me.done = true;
    n_live--;
    idle = 0;
    warps[me.t.warp].live &= ~(1u << me.t.lane);
    switch_fiber(me, next_fiber());
}

static void yield()
{
    /* Everybody had a turn and nobody came further. */
    if (++idle > 2 * n_fibers + 2)
        misuse("a barrier or warp operation that not all of its threads reach", running);
    Fiber &me = fibers[at], &to = next_fiber();
    if (&me != &to) switch_fiber(me, to);
}

void *dynamic_shared()
{
    return shared;
}

void block_barrier()
{
    const unsigned generation = barrier.generation;
    if (n_live != n_fibers) misuse("__syncthreads() after a thread of the block has left", running);
    if (++barrier.arrived == n_fibers) {
        barrier.arrived = 0;
        barrier.generation++;
        idle = 0;
        return;
    }
    while (barrier.generation == generation)
        yield();
}

void warp_barrier(unsigned mask)
{
    Warp &w = warps[current->warp];
    if (!(mask >> current->lane & 1) || (mask & ~w.live))
        misuse("a warp operation whose mask is not its lanes", running);
    const unsigned generation = w.generation;
    if (++w.arrived == unsigned(__builtin_popcount(mask))) {
        w.arrived = 0;
        w.generation++;
        idle = 0;
        return;
    }
    while (w.generation == generation)
        yield();
}

/* Two sets of words in turn: a lane that is one operation ahead disturbs nobody who still reads. */
uint64_t warp_exchange(unsigned mask, uint64_t word, unsigned from)
{
    Warp &w = warps[current->warp];
    const unsigned lane = current->lane, set = w.phase[lane]++ & 1;
    w.word[set][lane] = word;
    warp_barrier(mask);
    if (!(mask >> from & 1)) misuse("a shuffle from a lane outside of its mask", running);
    return w.word[set][from];
}

unsigned warp_ballot(unsigned mask, bool vote)
{
    Warp &w = warps[current->warp];
    const unsigned lane = current->lane, set = w.phase[lane]++ & 1;
    w.word[set][lane] = vote;
    warp_barrier(mask);
    unsigned all = 0;
    for (unsigned i = 0; i < WARP; i++)
        if (mask >> i & 1 && w.word[set][i]) all |= 1u << i;
    return all;
}

const void *warp_share(const void *mine, size_t bytes)
{
    Warp &w = warps[current->warp];
    const unsigned lane = current->lane, set = w.phase[lane]++ & 1;
    if (bytes > SHARE) misuse("a lane's share that is too large", running);
    memcpy(w.wide[set] + lane * bytes, mine, bytes);
    warp_barrier(0xffffffffu);
    return w.wide[set];
}

/* ---- copies to shared memory ---- */
void copy_later(void *to, const void *from, unsigned bytes)
{
    Fiber &me = fibers[at];
    if (reinterpret_cast<uintptr_t>(to) % 16 || reinterpret_cast<uintptr_t>(from) % 16)
        misuse("a copy to shared memory that is not aligned to 16 bytes", running);
    memset(to, 0xff, 16);
    me.copies.push_back({static_cast<char *>(to), from, bytes, me.group});
}

void copies_end()
{
    fibers[at].group++;
}

void copies_wait(unsigned but_last)
{
    Fiber &me = fibers[at];
    size_t n = 0;
    for (; n < me.copies.size() && me.copies[n].group + but_last < me.group; n++) {
        const Copy &c = me.copies[n];
        memset(c.to, 0, 16);
        memcpy(c.to, c.from, c.bytes);
    }
    me.copies.erase(me.copies.begin(), me.copies.begin() + std::ptrdiff_t(n));
}

static unsigned long n_launches, n_waits;
static bool in_graph;
int arch = 90;

static uint64_t now_us; /* by events */
void count_launch(uint64_t us)
{
    n_launches += !in_graph;
    now_us += us;
}

Mode mode;

/* Threads take turns by number, with a seed in another order for each block; the first one's. */
static size_t order_turns()
{
    static std::vector<size_t> order;
    order.resize(n_fibers);
    after.resize(n_fibers);
    for (size_t i = 0; i < n_fibers; i++) {
        const size_t j = mode.seed ? size_t(mode.draws() % (i + 1)) : i;
        order[i] = order[j];
        order[j] = i;
    }
    for (size_t i = 0; i < n_fibers; i++)
        after[order[i]] = order[(i + 1) % n_fibers];
    return order[0];
}

static void run_block(dim3 block)
{
    n_fibers = n_live = size_t(block.x) * block.y * block.z;
    warps.assign((n_fibers + WARP - 1) / WARP, Warp());
    barrier = Barrier();
    idle = 0;
    for (size_t i = 0; i < n_fibers; i++) {
        Fiber &f = fibers[i];
        f.t.index = dim3(unsigned(i % block.x), unsigned(i / block.x % block.y),
                         unsigned(i / block.x / block.y));
        f.t.lane = unsigned(i % WARP);
        f.t.warp = unsigned(i / WARP);
        warps[f.t.warp].live |= 1u << f.t.lane;
        start(f);
    }
    at = order_turns();
    home.done = false;
    switch_fiber(home, fibers[at]);
}

void run_grid(const char *name, dim3 grid, dim3 block, size_t smem,
              const std::function<void()> &thread)
{
    running = name;
    count_launch(uint64_t(grid.x) * grid.y * grid.z);
    const size_t n = size_t(block.x) * block.y * block.z;
    if (n == 0 || n > THREADS_MAX) misuse("a block of too many or no threads", name);
    if (smem > SHARED_MAX) misuse("too much shared memory", name);
    if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.y > 65535 || grid.z > 65535)
        misuse("a grid that no device takes", name);
    if (fibers.size() < THREADS_MAX) fibers.resize(THREADS_MAX);
    body = &thread;
    grid_size = grid;
    block_size = block;
    /* What lies behind the asked for bytes must stay as it is. */
    const size_t guard = SHARED_MAX - smem < 256 ? SHARED_MAX - smem : 256;
    for (unsigned z = 0; z < grid.z; z++)
        for (unsigned y = 0; y < grid.y; y++)
            for (unsigned x = 0; x < grid.x; x++) {
                block_index = dim3(x, y, z);
                memset(shared, 0xff, smem + guard); /* NaN until written */
                run_block(block);
                for (size_t i = 0; i < guard; i++)
                    if (shared[smem + i] != char(0xff))
                        misuse("writes past its shared memory", name);
            }
}

/* ---- memory: device memory opens with the queue, where there are protection keys: one a device,
 * whose kernels and products reach no other's ---- */
enum { DEVICES_MAX = 8 };
struct Block {
    size_t bytes;
    bool device;
    int of; /* whose it is */
};
static thread_local int device; /* the current one */
static std::map<char *, Block> blocks;
static std::map<char *, size_t> registered; /* the host's own memory, pinned */
static std::recursive_mutex lock;
static int key[DEVICES_MAX]; /* 0: not asked for yet, or there are none */

static void open_memory_of(int d, bool open)
{
    if (key[d] > 0) (void)pkey_set(key[d], open ? 0 : PKEY_DISABLE_ACCESS);
}

static void open_memory(bool open)
{
    for (int d = 0; d < DEVICES_MAX; d++)
        open_memory_of(d, open);
}

struct Alone { /* while it lives, one device's memory is open among theirs */
    explicit Alone(int d) : of(d)
    {
        set(false);
    }
    ~Alone()
    {
        set(true);
    }
    void set(bool open);
    int of;
};

/* The block that p points into; the end: none of ours. */
static std::map<char *, Block>::iterator block_of(const void *p)
{
    auto b = blocks.upper_bound(const_cast<char *>(static_cast<const char *>(p)));
    if (b == blocks.begin()) return blocks.end();
    --b;
    return static_cast<const char *>(p) < b->first + b->second.bytes ? b : blocks.end();
}

/* Without keys block by block, which takes its time: when it is asked for. */
void Alone::set(bool open)
{
    for (int d = 0; d < DEVICES_MAX; d++)
        if (d != of) open_memory_of(d, open);
    for (const auto &b : blocks)
        if (mode.apart && b.second.device && b.second.of != of)
            (void)mprotect(b.first, b.second.bytes, open ? PROT_READ | PROT_WRITE : PROT_NONE);
}

static bool is_device(const void *p)
{
    auto b = block_of(p);
    return b != blocks.end() && b->second.device;
}

static bool leaves_its_block(const void *p, size_t bytes)
{
    auto b = block_of(p);
    return b != blocks.end() &&
           bytes > size_t(b->first + b->second.bytes - static_cast<const char *>(p));
}

static bool is_registered(const void *p)
{
    auto r = registered.upper_bound(const_cast<char *>(static_cast<const char *>(p)));
    if (r == registered.begin()) return false;
    --r;
    return static_cast<const char *>(p) < r->first + r->second;
}

static bool spoils_mine();

static bool is_pinned(const void *p) /* or the device's */
{
    return block_of(p) != blocks.end() || is_registered(p);
}

static std::set<const char *> shared_seen; /* blocks that kernels were given and the host touches */
static unsigned long n_copies;

void check_argument(const char *kernel, const void *p)
{
    std::lock_guard<std::recursive_mutex> guard(lock);
    if (p && !is_pinned(p)) misuse("a kernel is given memory that no device reaches", kernel);
    auto b = block_of(p);
    if (b != blocks.end() && b->second.device && b->second.of != device)
        misuse("a kernel is given memory of another device", kernel);
    if (b != blocks.end() && !b->second.device) shared_seen.insert(b->first);
}

static size_t memory_max = SIZE_MAX;
static size_t held_bytes()
{
    size_t sum = 0;
    for (const auto &b : blocks)
        if (b.second.device) sum += b.second.bytes;
    return sum;
}

static cudaError_t map_block(void **ret, size_t bytes, bool is_device)
{
    std::lock_guard<std::recursive_mutex> guard(lock);
    if (spoils_mine()) return cudaErrorStreamCaptureUnsupported;
    if (is_device && memory_max != SIZE_MAX && held_bytes() + bytes > memory_max)
        return cudaErrorMemoryAllocation;
    int &own = key[device];
    if (own == 0) own = pkey_alloc(0, PKEY_DISABLE_ACCESS);
    const size_t page = 4096, size = (bytes + page - 1) / page * page;
    /* A page that nobody may touch behind every block. */
    char *p = static_cast<char *>(
        mmap(nullptr, size + page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    if (p == MAP_FAILED) return cudaErrorMemoryAllocation;
    const int access = PROT_READ | PROT_WRITE;
    int r = is_device && own > 0 ? pkey_mprotect(p, size, access, own) : mprotect(p, size, access);
    if (r != 0) {
        munmap(p, size + page);
        return cudaErrorMemoryAllocation;
    }
    if (is_device) open_memory(false); /* of this thread: it may not have asked before */
    blocks[p] = {size, is_device, device};
    *ret = p;
    return cudaSuccess;
}

/* ---- streams: each a queue that runs when somebody waits for it, or for an event in it ---- */
struct Mark { /* an event's inside, which queued items share */
    uint64_t recorded, fired, at_us;
    cudaStream_t from; /* of the last record */
};
typedef std::vector<std::function<void()>> Works; /* of a graph, in its order */
struct Work {
    std::function<void()> run;
    std::shared_ptr<Mark> mark; /* instead of run: fires it, or waits until it has */
    bool fires;
    uint64_t turn;
    cudaStream_t from;
};
} /* namespace hostcuda */

struct hostcuda_graph {
    std::shared_ptr<hostcuda::Works> works;
};
struct hostcuda_stream {
    int device;
    bool hurries; /* for copies: with mode.eager it waits for nobody but events */
    bool waits;   /* for one just now: what is behind that stays, whatever fires meanwhile */
    std::deque<hostcuda::Work> queue;
    std::shared_ptr<hostcuda::Works> recorded; /* while it records: */
    std::thread::id recorder;                  /* for whom */
    bool spoilt;
};
struct hostcuda_event {
    std::shared_ptr<hostcuda::Mark> mark;
};

namespace hostcuda
{
static void set_mode(const char *words)
{
    mode = Mode();
    for (const char *w = words, *end; w && *w; w = *end ? end + 1 : end) {
        unsigned long long seed;
        end = w + strcspn(w, ",");
        if (strncmp(w, "eager", 5) == 0 && end == w + 5)
            mode.eager = true;
        else if (strncmp(w, "apart", 5) == 0 && end == w + 5)
            mode.apart = true;
        else if (sscanf(w, "seed=%llu", &seed) == 1)
            mode.draws.seed(mode.seed = seed);
        else if (sscanf(w, "algorithms=%u", &mode.algorithms) != 1)
            misuse("no such mode", w);
    }
}

static const bool mode_is_set = (set_mode(getenv("KVBLEND_HOSTCUDA")), true);

static std::set<cudaStream_t> streams;
/* Processes that are tested as a whole are told by a variable. */
static int devices_told()
{
    const char *n = getenv("KVBLEND_HOSTCUDA_DEVICES");
    return n ? atoi(n) : 1;
}
static int n_devices = devices_told();
static cudaError_t last_error;
static long fails_after = -1; /* launches until the device is lost; -1 never */

void check_device(cudaStream_t s)
{
    if (s->device != device) misuse("work of one device is given to a stream of another", nullptr);
}

static void catch_up();
template <class F> static cudaError_t run_while(F wanted);

static void put(cudaStream_t s, const Work &w)
{
    s->queue.push_back(w);
    if (mode.eager && s->hurries) (void)run_while(catch_up);
}

/* Of a copy, which reaches any device. */
static void enqueue_copy(cudaStream_t s, std::function<void()> work)
{
    std::lock_guard<std::recursive_mutex> guard(lock);
    if (s->recorded)
        s->recorded->push_back(work);
    else
        put(s, {work, nullptr, false, 0, nullptr});
}

void enqueue(cudaStream_t s, std::function<void()> work)
{
    const int of = s->device;
    enqueue_copy(s, [=] {
        Alone alone(of);
        work();
    });
}

/* What no recording may hold; said of a stream, or of all that this thread records. */
static bool spoils(cudaStream_t s)
{
    if (s->recorded) s->spoilt = true;
    return s->recorded != nullptr;
}

static bool spoils_mine()
{
    bool any = false;
    for (cudaStream_t s : streams)
        if (s->recorded && s->recorder == std::this_thread::get_id()) any = spoils(s);
    return any;
}

/* The next item; a wait first runs as much of the other stream as it waits for, and no more. */
static void step(cudaStream_t s)
{
    Work w = s->queue.front();
    s->queue.pop_front();
    if (w.run) {
        if (fails_after == 0) last_error = cudaErrorLaunchFailure;
        if (fails_after > 0) fails_after--;
        if (last_error == cudaSuccess) w.run();
    } else if (w.fires) {
        if (w.mark->fired < w.turn) w.mark->fired = w.turn;
        w.mark->at_us = now_us;
        if (mode.eager) catch_up();
    } else {
        s->waits = true;
        while (w.mark->fired < w.turn) {
            if (w.from->queue.empty()) misuse("an event that its stream does not have", nullptr);
            step(w.from);
        }
        s->waits = false;
    }
}

/* ---- what happens when several streams have come to it ---- */
struct Meeting {
    std::vector<cudaStream_t> streams;
    std::vector<bool> here;
    bool waits; /* one of them has come and brings the others */
    std::function<void()> work;
};

static void arrive(Meeting &m, size_t i)
{
    count_launch();
    m.here[i] = true;
    if (m.waits) return;
    m.waits = true;
    for (size_t j = 0; j < m.streams.size(); j++)
        while (!m.here[j] && last_error == cudaSuccess) {
            if (m.streams[j]->queue.empty()) misuse("a sum that not all devices come to", nullptr);
            step(m.streams[j]);
        }
    if (last_error == cudaSuccess) m.work();
    m.here.assign(m.here.size(), false);
    m.waits = false;
}

void meet(const std::vector<cudaStream_t> &streams, std::function<void()> work)
{
    auto m =
        std::make_shared<Meeting>(Meeting{streams, std::vector<bool>(streams.size()), false, work});
    for (size_t i = 0; i < streams.size(); i++)
        enqueue_copy(streams[i], [=] { arrive(*m, i); });
}

int device_of(const void *p)
{
    std::lock_guard<std::recursive_mutex> guard(lock);
    auto b = block_of(p);
    return b == blocks.end() || !b->second.device ? -1 : b->second.of;
}

int device_of(cudaStream_t s)
{
    return s->device;
}

/* What hurries goes as far as events let it, in front of everything else that is queued. */
static void catch_up()
{
    for (cudaStream_t s : streams)
        while (s->hurries && !s->waits && !s->queue.empty()) {
            const Work &w = s->queue.front();
            if (!w.run && !w.fires && w.mark->fired < w.turn) break;
            step(s);
        }
}

/* Processes that are tested as a whole lose their device when this file appears, which is taken. */
static void lose_if_told()
{
    static const char *const path = getenv("KVBLEND_HOSTCUDA_LOSE");
    if (path && unlink(path) == 0) last_error = cudaErrorLaunchFailure;
}

template <class F> static cudaError_t run_while(F wanted)
{
    std::lock_guard<std::recursive_mutex> guard(lock);
    lose_if_told();
    open_memory(true);
    wanted();
    open_memory(false);
    return last_error;
}

static cudaError_t flush(cudaStream_t s)
{
    return run_while([=] {
        while (!s->queue.empty())
            step(s);
    });
}

static cudaError_t flush_all()
{
    std::lock_guard<std::recursive_mutex> guard(lock);
    for (cudaStream_t s : streams)
        (void)flush(s);
    return last_error;
}
} /* namespace hostcuda */

using namespace hostcuda;

/* Tests lose the device after n more items of the queue; -1: never, and whatever was lost is well
 * again. */
extern "C" __attribute__((visibility("default"))) void hostcuda_fail_after(long n)
{
    fails_after = n;
    if (n < 0) last_error = cudaSuccess;
}

/* What the device has room for beside what it holds; SIZE_MAX: any number of bytes. */
extern "C" __attribute__((visibility("default"))) void hostcuda_room(size_t bytes)
{
    std::lock_guard<std::recursive_mutex> guard(lock);
    memory_max = bytes == SIZE_MAX ? bytes : held_bytes() + bytes;
}

/* What has run and been waited for so far; products count as launches, a graph as one. */
extern "C" __attribute__((visibility("default"))) void hostcuda_counts(unsigned long *launches,
                                                                       unsigned long *waits)
{
    *launches = n_launches;
    *waits = n_waits;
}

/* Since it was last asked: copies; blocks of memory that kernels were given although the host touches
 * them, too, by any argument that is an address. */
extern "C" __attribute__((visibility("default"))) void hostcuda_traffic(unsigned long *copies,
                                                                        unsigned long *blocks_seen)
{
    std::lock_guard<std::recursive_mutex> guard(lock);
    *copies = n_copies;
    *blocks_seen = shared_seen.size();
    n_copies = 0;
    shared_seen.clear();
}

/* As KVBLEND_HOSTCUDA says it, from now on. */
extern "C" __attribute__((visibility("default"))) void hostcuda_mode(const char *words)
{
    set_mode(words);
}

/* In which order n threads of a block come to their first statement. */
extern "C" __attribute__((visibility("default"))) void hostcuda_turns(unsigned n, unsigned *ret)
{
    run_grid("turns", dim3(), dim3(n), 0, [&] { *ret++ = current->index.x; });
}

static bool records = true;
/* From now on streams refuse to record, or do not. */
extern "C" __attribute__((visibility("default"))) void hostcuda_records(bool on)
{
    records = on;
}

/* Devices that are opened from now on say that they are of this compute capability. */
extern "C" __attribute__((visibility("default"))) void hostcuda_pretend(int major, int minor)
{
    arch = major * 10 + minor;
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *a, const void *)
{
    a->binaryVersion = arch;
    return arch < 80 ? cudaErrorInvalidValue : cudaSuccess;
}

/* There are so many devices from now on; they share everything but their streams. */
extern "C" __attribute__((visibility("default"))) void hostcuda_devices(int n)
{
    n_devices = n;
}

cudaError_t cudaGetDeviceCount(int *n)
{
    *n = n_devices;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int index)
{
    if (index < 0 || index >= n_devices || index >= DEVICES_MAX) return cudaErrorNoDevice;
    device = index;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int)
{
    *p = cudaDeviceProp();
    snprintf(p->name, sizeof p->name, "emulation on the host");
    p->major = arch / 10;
    p->minor = arch % 10;
    p->multiProcessorCount = 4; /* so that a few blocks fill it, and fewer do not */
    p->sharedMemPerBlockOptin = SHARED_MAX;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr, int)
{
    *value = 1;
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = 13000;
    return cudaSuccess;
}

cudaError_t cudaGetLastError()
{
    return last_error;
}

const char *cudaGetErrorString(cudaError_t e)
{
    return e == cudaSuccess ? "no error" : e == cudaErrorNoDevice ? "no device" : "failure";
}

cudaError_t cudaMalloc(void **p, size_t bytes)
{
    return map_block(p, bytes, true);
}

cudaError_t cudaMallocManaged(void **p, size_t bytes, unsigned)
{
    return map_block(p, bytes, false);
}

cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned)
{
    return map_block(p, bytes, false);
}

cudaError_t cudaFree(void *p)
{
    std::lock_guard<std::recursive_mutex> guard(lock);
    if (spoils_mine()) return cudaErrorStreamCaptureUnsupported;
    (void)flush_all();
    auto b = blocks.find(static_cast<char *>(p));
    if (b == blocks.end()) return p ? cudaErrorInvalidValue : cudaSuccess;
    munmap(p, b->second.bytes + 4096);
    blocks.erase(b);
    return cudaSuccess;
}

cudaError_t cudaFreeHost(void *p)
{
    return cudaFree(p);
}

/* There is always as much left: enough for the pages and records of a test. */
cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes)
{
    std::lock_guard<std::recursive_mutex> guard(lock);
    *free_bytes = size_t(256) << 20;
    *total_bytes = *free_bytes + held_bytes();
    return cudaSuccess;
}

cudaError_t cudaHostRegister(void *p, size_t bytes, unsigned)
{
    std::lock_guard<std::recursive_mutex> guard(lock);
    char *at = static_cast<char *>(p);
    if (!p || bytes == 0) return cudaErrorInvalidValue;
    auto next = registered.lower_bound(at);
    if (is_registered(at) || (next != registered.end() && next->first < at + bytes))
        return cudaErrorHostMemoryAlreadyRegistered;
    registered[at] = bytes;
    return cudaSuccess;
}

cudaError_t cudaHostUnregister(void *p)
{
    std::lock_guard<std::recursive_mutex> guard(lock);
    (void)flush_all();
    return registered.erase(static_cast<char *>(p)) ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *a, const void *p)
{
    std::lock_guard<std::recursive_mutex> guard(lock);
    auto b = block_of(p);
    a->type = b == blocks.end() ? is_registered(p) ? cudaMemoryTypeHost : cudaMemoryTypeUnregistered
              : b->second.device ? cudaMemoryTypeDevice
                                 : cudaMemoryTypeManaged;
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned)
{
    std::lock_guard<std::recursive_mutex> guard(lock);
    *s = new hostcuda_stream();
    (*s)->device = device;
    streams.insert(*s);
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *s, unsigned flags, int)
{
    const cudaError_t e = cudaStreamCreateWithFlags(s, flags);
    (*s)->hurries = true;
    return e;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    *least = 0;
    *greatest = -1;
    return cudaSuccess;
}

/* Others may still have to wait for what is in it. */
cudaError_t cudaStreamDestroy(cudaStream_t s)
{
    std::lock_guard<std::recursive_mutex> guard(lock);
    (void)flush_all();
    streams.erase(s);
    delete s;
    return last_error;
}

cudaError_t cudaStreamSynchronize(cudaStream_t s)
{
    if (spoils(s)) return cudaErrorStreamCaptureUnsupported;
    n_waits++;
    return flush(s);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned)
{
    std::lock_guard<std::recursive_mutex> guard(lock);
    const Mark &m = *e->mark;
    if (spoils(s)) return cudaErrorStreamCaptureUnsupported;
    if (m.fired < m.recorded) put(s, {nullptr, e->mark, false, m.recorded, m.from});
    return last_error;
}

/* ---- graphs ---- */

cudaError_t cudaStreamBeginCapture(cudaStream_t s, cudaStreamCaptureMode)
{
    std::lock_guard<std::recursive_mutex> guard(lock);
    if (!records || s->recorded) return cudaErrorNotSupported;
    s->recorded = std::make_shared<Works>();
    s->recorder = std::this_thread::get_id();
    s->spoilt = false;
    return last_error;
}

cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *g)
{
    std::lock_guard<std::recursive_mutex> guard(lock);
    if (!s->recorded) return cudaErrorInvalidValue;
    const std::shared_ptr<Works> works = s->recorded;
    s->recorded = nullptr;
    if (s->spoilt) return cudaErrorStreamCaptureInvalidated;
    *g = new hostcuda_graph{works};
    return last_error;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *x, cudaGraph_t g, unsigned long long)
{
    *x = new hostcuda_graph{g->works};
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t g)
{
    delete g;
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t x, cudaStream_t s)
{
    const std::shared_ptr<Works> works = x->works;
    if (s->device != device) misuse("a graph is launched while another device is current", nullptr);
    enqueue_copy(s, [] { count_launch(); });
    for (size_t i = 0; i < works->size(); i++)
        enqueue_copy(s, [=] {
            const bool before = in_graph;
            in_graph = true;
            (*works)[i]();
            in_graph = before;
        });
    return last_error;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t x)
{
    delete x;
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned)
{
    *e = new hostcuda_event{std::make_shared<Mark>()};
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t e)
{
    std::lock_guard<std::recursive_mutex> guard(lock);
    delete e;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s)
{
    std::lock_guard<std::recursive_mutex> guard(lock);
    if (spoils(s)) return cudaErrorStreamCaptureUnsupported;
    e->mark->from = s;
    put(s, {nullptr, e->mark, true, ++e->mark->recorded, s});
    return last_error;
}

cudaError_t cudaEventSynchronize(cudaEvent_t e)
{
    n_waits += e->mark->fired < e->mark->recorded;
    return run_while([=] {
        const uint64_t turn = e->mark->recorded;
        while (e->mark->fired < turn)
            step(e->mark->from);
    });
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to)
{
    const Mark &a = *from->mark, &b = *to->mark;
    if (a.fired < a.recorded || b.fired < b.recorded) return cudaErrorNotReady;
    *ms = float(b.at_us - a.at_us) * 1e-3f;
    return last_error;
}

/* As with CUDA: pageable sources are read before the call returns, pageable destinations filled. */
cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t bytes, cudaMemcpyKind,
                            cudaStream_t s)
{
    std::lock_guard<std::recursive_mutex> guard(lock);
    if (leaves_its_block(dst, bytes) || leaves_its_block(src, bytes)) return cudaErrorInvalidValue;
    const bool to = is_device(dst), from = is_device(src);
    n_copies++;
    const bool pageable = !is_pinned(src) || !is_pinned(dst);
    if (pageable && spoils(s)) return cudaErrorStreamCaptureUnsupported;
    if (!from && to && !is_pinned(src)) {
        std::vector<char> staged(static_cast<const char *>(src),
                                 static_cast<const char *>(src) + bytes);
        enqueue_copy(s, [=] { memcpy(dst, staged.data(), bytes); });
        return last_error;
    }
    enqueue_copy(s, [=] { memmove(dst, src, bytes); });
    return is_pinned(dst) ? last_error : flush(s);
}

/* Row by row. */
cudaError_t cudaMemcpy2DAsync(void *dst, size_t to, const void *src, size_t from, size_t bytes,
                              size_t n, cudaMemcpyKind kind, cudaStream_t s)
{
    cudaError_t e = bytes > to || bytes > from ? cudaErrorInvalidValue : cudaSuccess;
    for (size_t i = 0; e == cudaSuccess && i < n; i++)
        e = cudaMemcpyAsync(static_cast<char *>(dst) + i * to,
                            static_cast<const char *>(src) + i * from, bytes, kind, s);
    return e;
}

cudaError_t cudaMemsetAsync(void *dst, int value, size_t bytes, cudaStream_t s)
{
    enqueue(s, [=] { memset(dst, value, bytes); });
    return last_error;
}
