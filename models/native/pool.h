/* Threads for short phases of work.
 *
 * A forward is a row of phases, each a number of tasks that threads claim one by one. A phase is over when its tasks
 * are done, whoever did them: a thread that the system has not woken yet, or has put aside between two tasks, holds
 * nobody up. Threads sleep between forwards, and spin within one: whoever yields a core gives it away for a whole time
 * slice.
 */
#ifndef POOL_H
#define POOL_H

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    CACHE_LINE = 64,
    PATIENCE = 50000, /* turns of spinning, a millisecond or two, after which a thread yields all the same */
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
static inline void phase_await(struct phase *phase, int tasks)
{
    for (int turns = 0; atomic_load(&phase->done) < tasks;)
        spin(&turns);
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
    for (int turns = 0; atomic_load(&pool->inside) > 0;)
        spin(&turns);
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
