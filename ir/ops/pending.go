package ops

import "reprise/ir"

func windowOps() []*ir.OpDef     { return nil }
func collectiveOps() []*ir.OpDef { return nil }
func foreignOps() []*ir.OpDef    { return nil }
