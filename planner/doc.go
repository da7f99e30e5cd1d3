// Package planner decides what a program keeps in memory, what it computes
// again, and in which order it runs, so that the program fits a number of
// bytes at the least extra cost. Each plan carries a lower bound that holds
// for every legal plan, and Check replays it without sharing code with the
// solvers that made it.
//
// The unit of compute is an Op (cost in nanoseconds or any other integer
// unit), the unit of memory is a Value (bytes). A Plan is a total order of op
// instances: an op that appears more than once is computed again, and every
// instance reads the latest instance of each of its inputs. Frees are implied:
// memory is released right after the op that reads it last.
//
// The package imports nothing of the compiler that it serves, keeps no state
// between calls, and gives the same plan for the same problem, budget and
// seed whatever the number of threads. The mathematics, with proofs and
// sources, is in docs/planner.md.
package planner
