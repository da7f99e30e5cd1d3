// Package trace runs the program that keeps everything and the planned program of a model in step, compares
// every value that an op writes, and names the first op that computes other bits: in terms of the model.
//
// Both programs are ordinary compiled libraries, run one instruction at a time. Values are aligned by
// identity (which op of the model's plan wrote them, in which turn of a loop), not by position: the planned program
// has another order, and clones. A clone is compared with its original in the same run as well. Before an
// op runs, its operands are hashed again: an op whose operand has lost its bytes since they were written is
// told apart from one that computes wrongly.
package trace
