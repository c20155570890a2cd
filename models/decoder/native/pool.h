/* Threads for short phases of work.
 *
 * A forward is a row of phases, each a number of tasks that threads claim one by one. A phase is over when its tasks
 * are done, whoever did them: a thread that the system has not woken yet holds nobody up, nor does one that it has put
 * aside between two tasks.
 *
 * Threads sleep between forwards. Within one, they spin for as long as one waits for a thread that runs, and then sleep
 * too. What is waited for longer is a thread that the system has put aside in the middle of a task, for others that want
 * its core. Spinning would use up the time that the waiting thread itself is due; whoever sleeps is owed it, and is on
 * its core again as soon as the other is.
 */
#ifndef POOL_H
#define POOL_H

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <x86intrin.h>

enum {
    CACHE_LINE = 64,
    PATIENCE = 100000, /* cycles of spinning, some 40 microseconds: a few times what threads that run differ by */
};

/* Counts up to a number that threads wait for. */
struct tally {
    _Alignas(CACHE_LINE) atomic_int count;
    atomic_int sleepers;
};

struct phase {
    _Alignas(CACHE_LINE) atomic_int next; /* the first task that nobody has claimed */
    struct tally done;
};

struct pool {
    int threads; /* the caller's among them */
    pthread_t *workers;
    atomic_uint forwards; /* started so far; sleepers wait for it to change */
    atomic_int open;      /* whether there is work to join */
    struct tally outside; /* 0 but for workers that may be reading `job`: less one for each */
    atomic_int quit;
    void (*job)(void *argument, int thread);
    void *argument;
};

struct worker {
    struct pool *pool;
    int thread;
};

/* In this order: either the sleeper sees the last count, or whoever made it sees the sleeper. */
static inline void tally_add(struct tally *tally, int awaited)
{
    if (atomic_fetch_add(&tally->count, 1) + 1 == awaited && atomic_load(&tally->sleepers) > 0)
        syscall(SYS_futex, &tally->count, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

static void tally_sleep(struct tally *tally, int awaited)
{
    atomic_fetch_add(&tally->sleepers, 1);
    for (int seen; (seen = atomic_load(&tally->count)) < awaited;)
        syscall(SYS_futex, &tally->count, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
    atomic_fetch_sub(&tally->sleepers, 1);
}

static inline void tally_await(struct tally *tally, int awaited)
{
    for (unsigned long long began = __rdtsc(); atomic_load(&tally->count) < awaited;) {
        if (__rdtsc() - began > PATIENCE) {
            tally_sleep(tally, awaited);
            return;
        }
        __builtin_ia32_pause();
    }
}

/* The next task, or a number that is not below `tasks`. */
static inline int phase_claim(struct phase *phase, int tasks)
{
    /* Threads that come late must not run the counter over. */
    if (atomic_load_explicit(&phase->next, memory_order_relaxed) >= tasks)
        return tasks;
    return atomic_fetch_add(&phase->next, 1);
}

/* One of `tasks` is done. */
static inline void phase_complete(struct phase *phase, int tasks)
{
    tally_add(&phase->done, tasks);
}

/* Until all tasks are done. What they wrote is visible then. */
static inline void phase_await(struct phase *phase, int tasks)
{
    tally_await(&phase->done, tasks);
}

static void *pool_worker(void *argument)
{
    struct worker self = *(struct worker *)argument;
    struct pool *pool = self.pool;
    free(argument);
    for (unsigned seen = 0;;) {
        while (atomic_load(&pool->forwards) == seen)
            syscall(SYS_futex, &pool->forwards, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
        seen = atomic_load(&pool->forwards);
        if (atomic_load(&pool->quit))
            return NULL;
        /* In this order: once the owner has closed the door and sees nobody inside, nobody will read the job. */
        atomic_fetch_sub(&pool->outside.count, 1);
        if (atomic_load(&pool->open))
            pool->job(pool->argument, self.thread);
        tally_add(&pool->outside, 0);
    }
}

static void pool_wake(struct pool *pool)
{
    atomic_fetch_add(&pool->forwards, 1);
    syscall(SYS_futex, &pool->forwards, FUTEX_WAKE_PRIVATE, pool->threads, NULL, NULL, 0);
}

/* Run `job` on the calling thread, and on the others as they wake. */
static void pool_run(struct pool *pool, void (*job)(void *, int), void *argument)
{
    pool->job = job;
    pool->argument = argument;
    if (pool->threads > 1) {
        atomic_store(&pool->open, 1);
        pool_wake(pool);
    }
    job(argument, 0);
    atomic_store(&pool->open, 0);
    tally_await(&pool->outside, 0);
}

/* Fewer threads than asked for where the system refuses them. */
static int pool_start(struct pool *pool, int threads)
{
    pool->workers = calloc(threads, sizeof *pool->workers);
    if (pool->workers == NULL)
        return 0;
    pool->threads = 1;
    for (; pool->threads < threads; pool->threads++) {
        struct worker *worker = malloc(sizeof *worker);
        if (worker == NULL)
            break;
        *worker = (struct worker){pool, pool->threads};
        if (pthread_create(&pool->workers[pool->threads], NULL, pool_worker, worker) != 0) {
            free(worker);
            break;
        }
    }
    return 1;
}

static void pool_stop(struct pool *pool)
{
    atomic_store(&pool->quit, 1);
    pool_wake(pool);
    for (int thread = 1; thread < pool->threads; thread++)
        pthread_join(pool->workers[thread], NULL);
    free(pool->workers);
}

#endif
