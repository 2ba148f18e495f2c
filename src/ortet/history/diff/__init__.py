"""Differences between trees and between texts."""
