// Package explain draws what compile.Explanation says of a step as a page of HTML that needs nothing
// else: memory by layer over the step, what is in memory at the peak, every value, the schedule
// and the plan's certificate.
package explain
