/* Threads for short phases of work.
 *
 * A forward is a row of phases, each a number of tasks that threads claim one by one. A phase is over when its tasks are
 * done, whoever did them: a thread that the system has not woken yet, or has put aside between two tasks, holds nobody
 * up. One that is put aside within a task does, and where others want the cores that happens in phase after phase. So
 * the caller watches how long it waits; where that is a good part of a forward, it runs the next ones alone, and only
 * now and then looks whether company pays again. Threads sleep between forwards, and spin within one: whoever yields a
 * core gives it away for a whole time slice.
 */
#ifndef POOL_H
#define POOL_H

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    CACHE_LINE = 64,
    PATIENCE = 50000,  /* turns of spinning, about a millisecond or two, after which a thread yields all the same */
    LEAST_ALONE = 16,  /* forwards that the caller runs alone once company has not paid; twice as many each time */
    MOST_ALONE = 512,
    STRIKES = 3, /* forwards in a row in which it does not pay, before the first of such times: one may be bad luck */
};

struct phase {
    _Alignas(CACHE_LINE) atomic_int next; /* the first task that nobody has claimed */
    _Alignas(CACHE_LINE) atomic_int done;
};

struct pool {
    int threads; /* the caller's among them */
    pthread_t *workers;
    atomic_uint forwards; /* started so far; sleepers wait for it to change */
    atomic_int open;      /* whether there is work to join */
    atomic_int inside;    /* workers that may be reading `job` */
    atomic_int quit;
    void (*job)(void *argument, int thread);
    void *argument;
    /* The caller's alone. */
    uint64_t waited;  /* of the running forward, in ticks of the processor's clock */
    int alone, alone_next; /* forwards that are still to be run alone; those of the next such time */
    int strikes;
};

struct worker {
    struct pool *pool;
    int thread;
};

/* The next task, or a number that is not below `tasks`. */
static inline int phase_claim(struct phase *phase, int tasks)
{
    /* Threads that come late must not run the counter over. */
    if (atomic_load_explicit(&phase->next, memory_order_relaxed) >= tasks)
        return tasks;
    return atomic_fetch_add(&phase->next, 1);
}

static inline void phase_complete(struct phase *phase)
{
    atomic_fetch_add(&phase->done, 1);
}

static inline void spin(int *turns)
{
    if (++*turns < PATIENCE)
        __builtin_ia32_pause();
    else
        sched_yield();
}

/* Until all tasks are done. What they wrote is visible then. */
static inline void phase_await(struct pool *pool, struct phase *phase, int tasks, int thread)
{
    if (atomic_load(&phase->done) >= tasks)
        return;
    uint64_t since = __builtin_ia32_rdtsc();
    for (int turns = 0; atomic_load(&phase->done) < tasks;)
        spin(&turns);
    if (thread == 0)
        pool->waited += __builtin_ia32_rdtsc() - since;
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
        atomic_fetch_add(&pool->inside, 1);
        if (atomic_load(&pool->open))
            pool->job(pool->argument, self.thread);
        atomic_fetch_sub(&pool->inside, 1);
    }
}

static void pool_wake(struct pool *pool)
{
    atomic_fetch_add(&pool->forwards, 1);
    syscall(SYS_futex, &pool->forwards, FUTEX_WAKE_PRIVATE, pool->threads, NULL, NULL, 0);
}

/* Whether company paid: whether the caller spent little of a forward waiting. */
static void judge(struct pool *pool, uint64_t ticks)
{
    if (pool->waited <= ticks / 3) {
        pool->alone_next = LEAST_ALONE;
        pool->strikes = 0;
        return;
    }
    if (pool->alone_next == LEAST_ALONE && ++pool->strikes < STRIKES)
        return;
    pool->strikes = 0;
    pool->alone = pool->alone_next;
    pool->alone_next = pool->alone_next < MOST_ALONE ? 2 * pool->alone_next : MOST_ALONE;
}

/* Run `job` on the calling thread, and on the others as they wake. */
static void pool_run(struct pool *pool, void (*job)(void *, int), void *argument)
{
    if (pool->threads == 1 || pool->alone > 0) {
        pool->alone -= pool->alone > 0;
        job(argument, 0);
        return;
    }
    uint64_t since = __builtin_ia32_rdtsc();
    pool->job = job;
    pool->argument = argument;
    pool->waited = 0;
    atomic_store(&pool->open, 1);
    pool_wake(pool);
    job(argument, 0);
    atomic_store(&pool->open, 0);
    for (int turns = 0; atomic_load(&pool->inside) > 0;)
        spin(&turns);
    judge(pool, __builtin_ia32_rdtsc() - since);
}

/* Fewer threads than asked for where the system refuses them. */
static int pool_start(struct pool *pool, int threads)
{
    pool->workers = calloc(threads, sizeof *pool->workers);
    if (pool->workers == NULL)
        return 0;
    pool->threads = 1;
    pool->alone_next = LEAST_ALONE;
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
