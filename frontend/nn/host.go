package nn

import "reprise/ir"

// Print writes a line with text and the first elements of xs to standard error each time the step comes by: once
// a step, whatever the budget, in the order of the program. xs then exist in memory.
func (s *Scope) Print(text string, xs ...*Tensor) {
	s.Ops("print", xs, ir.A("message", text))
}

// Assert ends the step with an error that says the layer and text unless all elements of pred, bools, are true.
func (s *Scope) Assert(pred *Tensor, text string) {
	s.Ops("assert", []*Tensor{pred}, ir.A("message", text))
}
