"""Schedules for CPUs, as rules of the form that `tvm.s_tir.dlight` has."""
