// Package ops is the table of operations: one row per op, by family, each with all
// that is known of it (ir.OpDef).
//
// Rows refer to each other by name, through the builder's table, so that a VJP may
// use an op whose row comes later; nothing here is registered or mutable.
package ops

import "reprise/ir"

// Table builds the table of all ops. It is a pure function.
func Table() *ir.Table {
	families := []func() []*ir.OpDef{
		elementwiseOps,
		shapeOps,
		reduceOps,
		contractOps,
		groupedOps,
		windowOps,
		indexOps,
		sortOps,
		scanOps,
		randomOps,
		nnOps,
		lossOps,
		attentionOps,
		optimOps,
		controlOps,
		collectiveOps,
		foreignOps,
	}
	var rows []*ir.OpDef
	for _, family := range families {
		rows = append(rows, family()...)
	}
	t := ir.NewTable(rows)
	for _, d := range rows {
		if d.Ref == nil && d.Expand != nil {
			d.Ref = expandRef(t)
		}
	}
	return t
}
